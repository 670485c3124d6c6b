"""Pages for tokens that may see a part of the fleet: no page is a dead end, and none shows what is another's."""

import httpx2
import pytest
from playwright.sync_api import Browser

from leasekeeper.core.decisions import Review
from leasekeeper.core.leases import RunRecord
from tests.conformance.world import account, profile
from tests.dashboard.stage import Stage, looking

LISTS = ("/ui/", "/ui/?view=board", "/ui/queue", "/ui/runs", "/ui/reviews", "/ui/dead-letters", "/ui/activity")
PAGES = (*LISTS, "/ui/conflicts", "/ui/settings", "/ui/queue/new", "/ui/kit")
SUGGESTED = ("sta", "account:", "profile:", "task:", "worker:", "pool:", "label:", "tier:")
# What a token is restricted to, and an account that it then does not see.
KINDS = {
    "account": ({"accounts": ["shoes_de"]}, "books_us"),
    "accounts": ({"accounts": ["shoes_de", "hats_fr"]}, "books_us"),
    "pool": ({"pools": ["warm"]}, "shoes_de"),
    "pools": ({"pools": ["warm", "default"]}, None),
    "account_of_a_pool": ({"accounts": ["hats_fr"], "pools": ["warm"]}, "shoes_de"),
}
# Conflicts are events, and those belong to no pool.
NOT_BY_POOL = "/ui/conflicts"


@pytest.fixture(scope="module")
def shared(stage: Stage) -> Stage:
    """The furnished store, with a profile of another pool that waits for a person."""
    stage.do(stage.world.declare(account("hats_fr"), profile("hats_fr_1", "hats_fr", pool="warm")))
    stage.do(stage.world.offer("visit", worker_id="w2", pool="warm"))
    stage.runs("hats_fr_1", "LOGIN_REQUIRED")
    return stage


def reading(stage: Stage, **restricted: list[str]) -> httpx2.Client:
    token = stage.served.new_token("read", "operate", "review", "submit", **restricted)
    return httpx2.Client(base_url=stage.served.url, cookies={"leasekeeper_token": token}, timeout=60)


@pytest.mark.parametrize("kind", KINDS)
def test_every_page_is_there_for_a_token_of_a_part_of_the_fleet(shared: Stage, kind: str) -> None:
    restricted, hidden = KINDS[kind]
    own = "hats_fr_1" if "warm" in restricted.get("pools", ()) else "shoes_de_1"
    (run, *_) = shared.do(shared.world.all(RunRecord, profile_id=own))
    records = (f"/ui/profiles/{own}", f"/ui/runs/{run.run_id}", f"/ui/jobs/{run.job_id}", f"/ui/?q=profile%3A{own}")
    events = f"/ui/activity?q=profile%3A{own}"
    with reading(shared, **restricted) as client:
        for path in (*PAGES, *records, events):
            answer = client.get(path)
            assert answer.status_code == (403 if "pools" in restricted and path == NOT_BY_POOL else 200), path
            assert "Sign out" in answer.text
            assert 'aria-label="Pages"' in answer.text
            assert hidden is None or f"{hidden}_" not in answer.text.replace("books_us*", ""), path
        for term in SUGGESTED:
            assert client.get("/ui/suggest", params={"of": "profiles", "term": term}).status_code == 200, term
        if hidden is not None:
            answer = client.get(f"/ui/profiles/{hidden}_1")
            assert answer.status_code == 403
            assert "Sign out" in answer.text


def test_a_token_of_two_accounts_shows_the_one_that_is_chosen(browser: Browser, shared: Stage) -> None:
    token = shared.served.new_token("read", accounts=["shoes_de", "hats_fr"])
    with looking(browser, shared.served.url, token) as eyes:
        page = eyes.go("/ui/")
        assert page.locator("tbody tr a.id").first.inner_text() == "shoes_de_1"
        page.get_by_label("Account", exact=True).select_option("hats_fr")
        page.get_by_role("button", name="Show").click()
        page.locator("#p-hats_fr_1").wait_for()
        assert page.locator("tbody tr").count() == 1
        eyes.go("/ui/reviews")
        eyes.sees("hats_fr_1")
        # A record names its own account, whichever is chosen.
        assert eyes.go("/ui/profiles/shoes_de_1").get_by_role("region", name="Current lease").count() == 1


def test_a_token_of_a_pool_decides_the_reviews_of_that_pool(shared: Stage) -> None:
    (review,) = shared.do(shared.world.all(Review, open="1", profile_id="hats_fr_1", target="profile"))
    with reading(shared, pools=["warm"]) as client:
        assert f'id="v-{review.review_id}"' in client.get("/ui/reviews").text
        form = {"target": "profile", "target_id": "hats_fr_1", "action": "clear", "back": "/ui/reviews"}
        assert "It is available now" in client.post("/ui/decide", data=form, follow_redirects=True).text


def test_a_token_that_may_not_read_is_refused_at_the_door(shared: Stage) -> None:
    token = shared.served.new_token("submit")
    with httpx2.Client(base_url=shared.served.url) as client:
        answer = client.post("/ui/sign-in", data={"token": token})
        assert (answer.status_code, answer.cookies.get("leasekeeper_token")) == (403, None)
        assert "has no scope read" in answer.text
        # One that was signed in already is not stuck.
        client.cookies.set("leasekeeper_token", token)
        answer = client.get("/ui/")
        assert answer.status_code == 403
        assert "Sign out" in answer.text
