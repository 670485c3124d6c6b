"""Who gets in: a token in the form, a one-time link, and nobody else; what the cookie is; how to leave."""

import httpx2
from playwright.sync_api import Browser

from leasekeeper.service.one_time_links import LINK_SECONDS, OneTimeLinks
from tests.dashboard.stage import WAIT_MS, Stage, looking


def test_a_person_signs_in_with_a_token_and_lands_where_they_wanted_to_go(browser: Browser, stage: Stage) -> None:
    with looking(browser, stage.served.url, None) as eyes:
        eyes.go("/ui/queue?q=state%3Ablocked")
        assert "/ui/sign-in" in eyes.page.url
        eyes.page.get_by_label("Token").fill(stage.served.token)
        eyes.page.get_by_role("button", name="Sign in").click()
        eyes.page.wait_for_url("**/ui/queue?q=state%3Ablocked", timeout=WAIT_MS)
        (cookie,) = [each for each in eyes.context.cookies() if each["name"] == "leasekeeper_token"]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert eyes.page.evaluate("document.cookie") == ""


def test_a_wrong_token_is_refused_and_the_form_says_why(browser: Browser, stage: Stage) -> None:
    with looking(browser, stage.served.url, None) as eyes:
        eyes.go("/ui/")
        eyes.page.get_by_label("Token").fill(stage.served.token[:-1] + "!")
        eyes.page.get_by_role("button", name="Sign in").click()
        eyes.page.get_by_role("alert").get_by_text("no token").wait_for()
        assert eyes.context.cookies() == []
        # The browser itself notes the status 401 of the form's page.
        eyes.troubles[:] = [each for each in eyes.troubles if "401" not in each]


def test_a_one_time_link_signs_in_once(browser: Browser, stage: Stage) -> None:
    link = stage.served.service.links.make(stage.served.url, stage.served.token)
    with looking(browser, stage.served.url, None) as eyes:
        eyes.page.goto(link)
        eyes.page.wait_for_url("**/ui/", timeout=WAIT_MS)
        eyes.sees("Fleet")
    assert httpx2.get(link).status_code == 410


def test_a_link_is_forgotten_after_some_minutes() -> None:
    now = 100.0
    links = OneTimeLinks(lambda: now)
    code = links.make("http://127.0.0.1:1", "lk_text").partition("code=")[2]
    now += LINK_SECONDS
    assert links.take(code) is None


def test_signing_out_ends_it(browser: Browser, stage: Stage) -> None:
    with looking(browser, stage.served.url, stage.served.token) as eyes:
        eyes.go("/ui/").get_by_role("button", name="Sign out").click()
        eyes.page.get_by_label("Token").wait_for()
        eyes.go("/ui/queue")
        assert "/ui/sign-in" in eyes.page.url


def test_the_api_takes_no_cookie_and_pages_take_no_form_of_another_site(stage: Stage) -> None:
    cookies = {"leasekeeper_token": stage.served.token}
    with httpx2.Client(base_url=stage.served.url, cookies=cookies) as client:
        assert client.get("/v1/jobs").status_code == 401
        form = {"target": "profile", "target_id": "books_us_1", "action": "disable", "note": "x"}
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.test"}):
            assert client.post("/ui/decide", data=form, headers=headers).status_code == 403
        assert client.get("/ui/profiles/books_us_1").text.count("disabled") < 2


def test_the_address_to_return_to_is_a_page_of_ours(stage: Stage) -> None:
    for elsewhere in ("https://evil.test/ui/", "//evil.test/ui/", "/ui/\\evil.test", "javascript:alert(1)"):
        form = {"token": stage.served.token, "next": elsewhere}
        answer = httpx2.post(f"{stage.served.url}/ui/sign-in", data=form, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"].endswith("/ui/")) == (303, True)


def test_guessing_tokens_in_the_form_is_stopped(stage: Stage) -> None:
    """The same limit as for the API. It is per application, so this test uses one of its own."""
    from starlette.testclient import TestClient

    from leasekeeper.service.app import make_app

    client = TestClient(make_app(stage.served.service), base_url="http://127.0.0.1", client=("10.9.8.7", 1))
    statuses = [client.post("/ui/sign-in", data={"token": "lk_wrong"}).status_code for _ in range(21)]
    assert (statuses[0], statuses[-1]) == (401, 429)
