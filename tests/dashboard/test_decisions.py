"""What people do in the pages: decide reviews, also two at once, act on many jobs, submit; and who may not."""

import re

import httpx2
import pytest
from playwright.sync_api import Browser, Route

from leasekeeper.core.accounts import Account, Proxy, ProxyTrouble
from leasekeeper.core.decisions import Action, Review
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.notes import Note
from leasekeeper.core.profiles import Lane, ProfileState
from leasekeeper.runtime.proxy_check import report_on
from tests.conformance.world import account, profile, proxy
from tests.dashboard.stage import WAIT_MS, Eyes, Stage, looking


@pytest.fixture
def shop(stage: Stage, request: pytest.FixtureRequest) -> str:
    """A profile for this test alone, of an account of its own."""
    name: str = request.node.name.removeprefix("test_")[:40].rstrip("_")
    stage.do(stage.world.declare(account(f"a_{name}"), profile(name, f"a_{name}")))
    return name


def state(stage: Stage, profile_id: str) -> ProfileState:
    found: ProfileState = stage.do(stage.world.state(profile_id))
    return found


def test_clearing_a_review_frees_the_jobs_that_wait(eyes: Eyes, stage: Stage, shop: str) -> None:
    stage.runs(shop, "LOGIN_REQUIRED", message="logged out")
    waiting = stage.submits(shop)
    assert stage.do(stage.world.job(waiting)).state is JobState.BLOCKED
    (review,) = stage.do(stage.world.all(Review, open="1", profile_id=shop, target="profile"))
    page = eyes.go(f"/ui/reviews?review={review.review_id}")
    eyes.sees("1 waiting job may start")
    page.get_by_label("Note", exact=True).fill("logged in by hand")
    page.get_by_role("button", name="Clear").click()
    eyes.sees(f"profile {shop} was cleared. It is available now.")
    assert state(stage, shop) is ProfileState.AVAILABLE
    assert stage.do(stage.world.job(waiting)).state is JobState.QUEUED
    decided = stage.do(stage.world.store.get(Review, review.review_id))
    assert (decided.note, decided.actor.startswith("tests (")) == ("logged in by hand", True)


def test_a_key_decides(eyes: Eyes, stage: Stage, shop: str) -> None:
    stage.runs(shop, "SECURITY_PROMPT")
    (review,) = stage.do(stage.world.all(Review, open="1", profile_id=shop, target="profile"))
    page = eyes.go(f"/ui/reviews?review={review.review_id}")
    page.keyboard.press("d")
    eyes.sees(f"profile {shop} was disabled.")
    assert state(stage, shop) is ProfileState.DISABLED


def test_the_second_of_two_people_sees_that_it_was_decided(browser: Browser, stage: Stage, shop: str) -> None:
    stage.runs(shop, "LOGIN_REQUIRED")
    (review,) = stage.do(stage.world.all(Review, open="1", profile_id=shop, target="profile"))
    settings = (browser, stage.served.url, stage.served.token)
    with looking(*settings, java_script_enabled=False) as ann, looking(*settings, java_script_enabled=False) as ben:
        for each in (ann, ben):
            each.go(f"/ui/reviews?review={review.review_id}")
        ann.page.get_by_role("button", name="Quarantine").click()
        ann.sees(f"profile {shop} was quarantined.")
        ben.page.get_by_role("button", name="Clear").click()
        ben.sees("another person decided about it")
    assert state(stage, shop) is ProfileState.QUARANTINED


def test_a_review_that_somebody_else_decides_makes_room_for_no_other(eyes: Eyes, stage: Stage, shop: str) -> None:
    stage.runs(shop, "LOGIN_REQUIRED")
    (review,) = stage.do(stage.world.all(Review, open="1", profile_id=shop, target="profile"))
    page = eyes.go(f"/ui/reviews?review={review.review_id}")
    page.get_by_text("live", exact=True).wait_for()
    before = {each.review_id for each in stage.do(stage.world.all(Review, open="1"))}
    stage.do(stage.world.decide_profile(Action.CLEAR, shop, note="I logged in <b>"))
    page.locator(".review").get_by_text("I logged in <b>").wait_for()
    assert page.locator(".review button").count() == 0
    page.keyboard.press("c")
    page.keyboard.press("j")
    page.wait_for_url(lambda url: str(review.review_id) not in url)
    assert {each.review_id for each in stage.do(stage.world.all(Review, open="1"))} == before - {review.review_id}


def test_what_is_typed_stays_when_an_answer_comes_that_was_asked_for_before(
    eyes: Eyes, stage: Stage, shop: str
) -> None:
    job = stage.submits(shop, task="not_offered")
    held: list[Route] = []

    def hold(route: Route) -> None:
        if held or "hx-request" not in route.request.headers:
            route.continue_()
        else:
            held.append(route)

    eyes.page.route(f"**/ui/jobs/{job.job_id}", hold)
    page = eyes.go(f"/ui/jobs/{job.job_id}")
    page.get_by_text("live", exact=True).wait_for()
    page.evaluate("document.addEventListener('htmx:before:swap', () => { window.arrived = true; })")
    stage.do(stage.world.decide_job(job, Action.PRIORITIZE, note="n", to="3"))
    for _ in range(WAIT_MS // 50):
        if held:
            break
        page.wait_for_timeout(50)  # waits: until the page has asked for itself again
    page.locator("summary", has_text="Change priority").click()
    form = page.locator("details[open] form")
    eyes.until("document.activeElement.name === 'to'")  # the form has taken the focus, once
    form.get_by_label("Priority").fill("9")
    form.get_by_label("Note").fill("the customer waits")
    held[0].continue_()
    eyes.until("window.arrived === true")
    assert [form.get_by_label(name).input_value() for name in ("Priority", "Note")] == ["9", "the customer waits"]
    form.get_by_role("button", name="Change priority").click()
    eyes.sees("another person decided about it")
    assert stage.do(stage.world.job(job)).priority == 3


def test_all_reviews_of_one_cause_are_decided_at_once(eyes: Eyes, stage: Stage, shop: str) -> None:
    stage.do(stage.world.declare(*(profile(f"{shop}_{n}", f"a_{shop}") for n in range(3))))
    for n in range(3):
        stage.runs(f"{shop}_{n}", "PROFILE_MISMATCH")
    (first, *_) = stage.do(stage.world.all(Review, open="1", reason="PROFILE_MISMATCH", target="profile"))
    page = eyes.go(f"/ui/reviews?reason=PROFILE_MISMATCH&review={first.review_id}")
    page.get_by_text("Decide all").click()
    page.get_by_label("Note for clear").fill("the proxy was wrong")
    page.get_by_role("button", name="Clear 3 profiles").click()
    eyes.sees("3 of 3 cleared.")
    assert {state(stage, f"{shop}_{n}") for n in range(3)} == {ProfileState.AVAILABLE}


def test_all_proxies_of_one_cause_are_decided_at_once(eyes: Eyes, stage: Stage, shop: str) -> None:
    """Their reviews name a profile, too: nothing is decided about that."""
    exits = [proxy(f"exit_{n}", region="DE") for n in range(2)]
    used = [profile(f"{shop}_{n}", f"a_{shop}", proxy_id=f"exit_{n}") for n in range(2)]
    stage.do(stage.world.declare(*exits, *used))
    for each in exits:
        stage.do(stage.world.store.report_proxy(report_on(each, ProxyTrouble.MISMATCH, "expected DE, seen FR")))
    (first, *_) = stage.do(stage.world.all(Review, open="1", target="proxy"))
    page = eyes.go(f"/ui/reviews?review={first.review_id}")
    page.get_by_text("Decide all 2 proxies with").click()
    page.get_by_label("Note for retry").fill("the exit moved back")
    page.get_by_role("button", name="Retry 2 proxies").click()
    eyes.sees("2 of 2 retried.")
    now = stage.do(stage.world.store.check()).now
    due = [each.ask_at is not None and each.ask_at <= now for each in stage.do(stage.world.all(Proxy, trouble="1"))]
    assert due == [True, True]
    assert {state(stage, each.profile_id) for each in used} == {ProfileState.AVAILABLE}


def test_a_token_that_may_only_read_sees_and_cannot_act(browser: Browser, stage: Stage, shop: str) -> None:
    stage.runs(shop, "LOGIN_REQUIRED")
    (review,) = stage.do(stage.world.all(Review, open="1", profile_id=shop, target="profile"))
    with looking(browser, stage.served.url, stage.served.new_token("read")) as eyes:
        eyes.go(f"/ui/reviews?review={review.review_id}")
        eyes.sees("Your token may read, not decide.")
        for path in ("/ui/", f"/ui/profiles/{shop}", "/ui/queue"):
            assert eyes.go(path).locator("form[method=post]:not([action$=sign-out])").count() == 0
        asked: dict[str, str | float | bool] = {"target": "profile", "target_id": shop, "action": "clear", "note": "x"}
        answer = eyes.page.request.post(f"{eyes.url}/ui/decide", form=asked)
        assert "has no scope review" in answer.text()
    assert state(stage, shop) is ProfileState.REVIEW_REQUIRED


def test_a_token_of_one_account_sees_that_account_alone(browser: Browser, stage: Stage) -> None:
    token = stage.served.new_token("read", accounts=["shoes_de"])
    with looking(browser, stage.served.url, token) as eyes:
        assert eyes.go("/ui/").locator("tbody tr").count() == 1
        answer = eyes.page.goto(f"{eyes.url}/ui/profiles/books_us_1")
        assert answer is not None
        assert answer.status == 403
        eyes.troubles[:] = [each for each in eyes.troubles if "403" not in each]


def test_all_jobs_that_match_are_cancelled_if_their_number_is_the_one_that_was_seen(
    eyes: Eyes, stage: Stage, shop: str
) -> None:
    jobs = [stage.submits(shop, task="not_offered") for _ in range(3)]
    page = eyes.go(f"/ui/queue?q=profile%3A{shop}&act=cancel")
    eyes.sees("Cancel 3 jobs?")
    jobs.append(stage.submits(shop, task="not_offered"))
    page.get_by_label("Note").fill("not needed")
    page.get_by_role("button", name="Cancel 3").click()
    eyes.sees("nothing was done: 4 match now, not 3")
    page = eyes.go(f"/ui/queue?q=profile%3A{shop}&act=cancel")
    page.get_by_label("Note").fill("not needed")
    page.get_by_role("button", name="Cancel 4").click()
    eyes.sees("4 of 4 cancelled.")
    assert {stage.do(stage.world.job(job)).state for job in jobs} == {JobState.CANCELLED}


def test_a_job_is_submitted_by_the_form_and_edited_to_run_again(eyes: Eyes, stage: Stage, shop: str) -> None:
    page = eyes.go(f"/ui/queue/new?profile_id={shop}")
    page.get_by_label("Task").fill("visit")
    page.get_by_label("Payload").fill("{not json")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("Must be JSON").wait_for()
    page.get_by_label("Payload").fill('{"orders": 7}')
    page.get_by_label("Priority").fill("5")
    page.get_by_role("button", name="Submit").click()
    eyes.sees("job submitted.")
    page.get_by_role("link", name="Edit and run again").click()
    assert (page.get_by_label("Payload").input_value(), page.get_by_label("Priority").input_value()) == (
        '{"orders": 7}',
        "5",
    )
    page.get_by_label("Priority").fill("9")
    page.get_by_role("button", name="Submit").click()
    eyes.sees("job submitted.")
    found = stage.do(stage.world.all(Job, profile_id=shop))
    assert sorted(job.priority for job in found) == [5, 9]
    assert {str(job.payload) for job in found} == {"{'orders': 7}"}
    eyes.troubles[:] = [each for each in eyes.troubles if "400" not in each]


def test_an_account_is_paused_and_resumed_with_a_note(eyes: Eyes, stage: Stage, shop: str) -> None:
    page = eyes.go(f"/ui/profiles/{shop}")
    for action in ("Pause account", "Resume account"):
        page.locator("summary", has_text=action).click()
        page.locator("details[open] textarea").fill("the shop is closed")
        page.locator("details[open]").get_by_role("button", name=action).click()
        eyes.sees("was paused." if action.startswith("Pause") else "was resumed.")
    assert stage.do(stage.world.store.get(Lane, shop)).state is ProfileState.AVAILABLE


def test_a_dead_letter_is_retried_from_its_group(eyes: Eyes, stage: Stage, shop: str) -> None:
    grant = stage.runs(shop, "TIMEOUT", max_attempts=1, message="the page did not answer")
    job = stage.do(stage.world.job(grant))
    assert job.state is JobState.DEAD
    row = eyes.go("/ui/dead-letters").locator(f"#j-{job.job_id}")
    row.locator("summary", has_text="Retry").click()
    row.locator("details[open] textarea").fill("the shop is back")
    row.locator("details[open]").get_by_role("button", name="Retry").click()
    eyes.sees(f"job {job.job_id} was retried.")
    assert stage.do(stage.world.job(job)).state is JobState.QUEUED


def test_all_dead_letters_of_a_group_are_retried_if_their_number_is_the_one_that_was_seen(
    eyes: Eyes, stage: Stage, shop: str
) -> None:
    stage.do(stage.world.offer("read_prices", worker_id="w2"))

    def dies() -> Job:
        grant = stage.runs(shop, "TEMPORARY_NAVIGATION_ERROR", max_attempts=1, task="read_prices")
        job: Job = stage.do(stage.world.job(grant))
        return job

    jobs = [dies(), dies()]
    page = eyes.go(f"/ui/dead-letters?q=profile%3A{shop}")
    page.locator("summary", has_text="Retry all 2").click()
    jobs.append(dies())
    page.locator("details[open] textarea").fill("the shop is back")
    page.get_by_role("button", name="Retry 2 jobs").click()
    eyes.sees("nothing was done: 3 match now, not 2")
    page.locator("summary", has_text="Retry all 3").click()
    page.locator("details[open] textarea").fill("the shop is back")
    page.get_by_role("button", name="Retry 3 jobs").click()
    eyes.sees("3 of 3 retried.")
    assert {stage.do(stage.world.job(job)).state for job in jobs} == {JobState.QUEUED}


def test_a_token_is_created_shown_once_and_revoked(eyes: Eyes, stage: Stage) -> None:
    page = eyes.go("/ui/settings")
    page.get_by_text("Create a token").click()
    page.get_by_label("Name").fill("robot <b>")
    page.get_by_label("read", exact=True).check()
    page.get_by_role("button", name="Create").click()
    eyes.sees("shown this once")
    text = page.locator("pre").first.inner_text()
    with httpx2.Client(base_url=stage.served.url, headers={"Authorization": f"Bearer {text}"}) as client:
        assert client.get("/v1/whoami").json()["scopes"] == ["read"]
    page = eyes.go("/ui/settings")
    assert text not in page.content()
    row = page.locator("tbody tr", has_text="robot <b>")
    row.locator("summary", has_text="Revoke").click()
    row.locator("details[open] textarea").fill("not needed")
    row.locator("details[open]").get_by_role("button", name="Revoke").click()
    eyes.sees("was revoked.")


def test_an_endpoint_is_added_and_pinged_and_its_message_listed(eyes: Eyes, stage: Stage) -> None:
    page = eyes.go("/ui/settings")
    page.get_by_text("Add an endpoint").click()
    page.get_by_label("Id", exact=True).fill("alerts")
    page.get_by_label("URL").fill("https://hooks.test/leasekeeper")
    page.get_by_role("button", name="Add", exact=True).click()
    eyes.sees("Signing secret of endpoint alerts")
    secret = page.locator("pre").first.inner_text()
    page = eyes.go("/ui/settings")
    assert secret not in page.content()
    page.get_by_role("button", name="Ping").click()
    eyes.sees("endpoint alerts was pinged.")
    row = page.get_by_role("region", name="Webhook messages").locator("tbody tr")
    assert row.count() == 1
    row.get_by_role("button", name="Send again").click()
    eyes.sees("was not tried yet: there is nothing to replay")  # nobody sends in this test


def test_people_write_notes_on_a_profile_and_its_account(eyes: Eyes, stage: Stage, shop: str) -> None:
    page = eyes.go(f"/ui/profiles/{shop}")
    for label, text in (("Add a note", "asks for a code on Mondays"), ("Add a note on the account", "owner: Kim <b>")):
        page.locator("summary", has_text=re.compile(f"^{label}$")).click()
        page.locator("details[open] textarea").fill(text)
        page.locator("details[open]").get_by_role("button", name=label, exact=True).click()
        eyes.sees("was noted.")
        assert text in page.locator(".notes").inner_text()
    assert {note.subject for note in stage.do(stage.world.all(Note, account_id=f"a_{shop}"))} == {shop, f"a_{shop}"}


def test_the_priority_of_a_job_is_changed(eyes: Eyes, stage: Stage, shop: str) -> None:
    job = stage.submits(shop, task="not_offered")
    page = eyes.go(f"/ui/jobs/{job.job_id}")
    page.locator("summary", has_text="Change priority").click()
    page.get_by_label("Priority").fill("9")
    page.locator("details[open] textarea").fill("the customer waits")
    page.locator("details[open]").get_by_role("button", name="Change priority").click()
    eyes.sees(f"job {job.job_id} was prioritized.")
    assert stage.do(stage.world.job(job)).priority == 9


def test_a_person_says_who_is_banned_and_where_a_directory_is(eyes: Eyes, stage: Stage, shop: str) -> None:
    page = eyes.go(f"/ui/profiles/{shop}")
    for label, more in (("Account is banned", ""), ("Profile is suspected", ""), ("Directory was moved", "machine-7")):
        page.locator("summary", has_text="Ban status and home").click()
        page.locator("summary", has_text=label).click()
        form = page.locator("details.ask[open] form")
        if more:
            form.get_by_label("To machine").fill(more)
        form.get_by_label("Note").fill("the shop told us")
        form.get_by_role("button", name=label).click()
        page.locator("#flash").get_by_text("was m").wait_for()
    lane = stage.do(stage.world.lane(shop))
    assert (lane.ban_status, lane.home) == ("suspected", "machine-7")
    account = stage.do(stage.served.store.get(Account, lane.account_id))
    assert (account.ban_status, account.paused) == ("banned", True)
    eyes.sees("suspected, account banned")
