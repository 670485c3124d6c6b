"""Each page in a real browser: what it shows, that stored texts are shown as text, by keyboard, on a phone, live."""

import gzip
import re
from importlib import resources

import httpx2
from playwright.sync_api import Browser, Route

from leasekeeper.core.decisions import Action, Review
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import RunRecord
from tests.conformance.world import profile
from tests.dashboard.stage import EVIL, WAIT_MS, Eyes, Stage, examine, looking

PAGES = (
    "/ui/",
    "/ui/?view=board",
    "/ui/?q=state%3Aquarantined",
    "/ui/profiles/books_us_2",
    "/ui/profiles/shoes_de_1",
    "/ui/queue",
    "/ui/queue?act=cancel",
    "/ui/queue/new",
    "/ui/runs",
    "/ui/reviews",
    "/ui/dead-letters",
    "/ui/conflicts",
    "/ui/activity",
    "/ui/activity?q=type%3Arun_settled",
    "/ui/settings",
    "/ui/settings?examine=1",
    "/ui/sign-in",
    "/ui/kit",
)
WITHOUT_SHARED_WORKERS = "delete window.SharedWorker"


def pages(stage: Stage) -> list[str]:
    """Every page, those of single records included."""
    runs = stage.do(stage.world.all(RunRecord))
    jobs = [run.job_id for run in runs]
    return [*PAGES, *(f"/ui/runs/{run.run_id}" for run in runs[:4]), *(f"/ui/jobs/{job_id}" for job_id in jobs[:2])]


def test_every_page_is_accessible_in_both_themes_and_fits_a_phone(browser: Browser, stage: Stage) -> None:
    with looking(browser, stage.served.url, stage.served.token) as eyes:
        wrong = [each for path in pages(stage) for each in examine(eyes, path)]
        for path in ("/ui/profiles/nobody", "/ui/assets/nothing.js"):  # with the navigation, and without
            wrong += examine(eyes, path, 404)
    assert wrong == []


def test_stored_texts_are_shown_as_text_on_every_page(browser: Browser, hostile: Stage) -> None:
    """Path → how often a hostile text is seen on it at least, so that no field is forgotten."""
    runs = {run.profile_id: run for run in hostile.do(hostile.world.all(RunRecord))}
    (submitted, *_) = hostile.do(hostile.world.all(Job, profile_id="p4", state="blocked"))
    (review, *_) = hostile.do(hostile.world.all(Review, open="1", profile_id="p2", target="profile"))
    shown = {
        "/ui/": 3,
        "/ui/?view=board": 3,
        "/ui/profiles/p1": 6,
        "/ui/profiles/p4": 3,
        "/ui/profiles/p5": 3,
        "/ui/queue": 1,
        f"/ui/jobs/{submitted.job_id}": 3,
        f"/ui/queue/new?from={submitted.job_id}": 0,
        "/ui/runs": 1,
        f"/ui/runs/{runs['p2'].run_id}": 6,
        f"/ui/runs/{runs['p4'].run_id}": 3,
        f"/ui/reviews?review={review.review_id}": 2,
        "/ui/dead-letters": 1,
        "/ui/conflicts": 0,
        "/ui/activity": 2,
        "/ui/settings": 5,
    }
    few = []
    with looking(browser, hostile.served.url, hostile.served.token) as eyes:
        for path, least in shown.items():
            page = eyes.go(path)
            assert page.title() != "owned"
            assert page.locator("img[src='x'], img[onerror]").count() == 0
            assert page.locator("main script").count() == 0
            assert page.get_by_text("owned49").count() == 0
            found = page.locator("main").inner_text().count(EVIL[:20])
            few += [f"{path}: {found} of {least}"] if found < least else []
        # Suggestions are made by a script: they are text, too.
        page = eyes.go("/ui/")
        page.get_by_label("Filter").fill("p")
        page.get_by_role("option", name="p1").wait_for()
    assert few == []


def test_assets_are_small_and_pages_allow_nothing_inline(eyes: Eyes, stage: Stage) -> None:
    folder = resources.files("leasekeeper.service.pages").joinpath("assets")
    files = [each for place in (folder, folder.joinpath("vendor")) for each in place.iterdir() if each.is_file()]
    assert sum(len(gzip.compress(each.read_bytes())) for each in files) < 200_000
    for path in (*pages(stage), "/ui/profiles/nobody", "/ui/sign-in", "/ui/enter?code=x"):
        answer = eyes.page.request.get(f"{eyes.url}{path}")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "http:" not in policy
        # Nor is there anything that the policy would refuse.
        tags = re.sub(r'"[^"]*"', '""', answer.text())
        inline = re.findall(r"<style|<[^<>]*\s(?:style|on[a-z]+)=|<script(?! src=)", tags)
        assert inline == [], path


def test_every_page_can_be_read_without_javascript(browser: Browser, stage: Stage) -> None:
    with looking(browser, stage.served.url, stage.served.token, java_script_enabled=False) as eyes:
        for path in pages(stage):
            assert eyes.go(path).locator("main h1").count() == 1
        eyes.go("/ui/").get_by_label("Filter").fill("state:quarantined")
        eyes.page.get_by_role("button", name="Filter").click()
        eyes.page.wait_for_url("**q=state%3Aquarantined")
        assert eyes.page.locator("tbody tr").count() == 1


def test_the_fleet_is_filtered_while_one_types_and_terms_are_suggested(eyes: Eyes) -> None:
    page = eyes.go("/ui/")
    assert page.locator("tbody tr").count() >= 6
    page.get_by_label("Filter").press_sequentially("account:books_* sta")
    page.get_by_role("option", name="state:").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("option", name="state:quarantined").click()
    eyes.until("document.querySelectorAll('tbody tr').length === 1")
    assert page.get_by_label("Filter").input_value() == "account:books_* state:quarantined "
    assert "q=account%3Abooks_*+state%3Aquarantined" in page.url
    page.reload()
    assert page.locator("tbody tr").count() == 1


def test_values_that_the_fleet_has_are_suggested(stage: Stage) -> None:
    suggested = {
        "label:ti": ["label:tier=gold"],
        "tier:": ["tier:gold"],
        "pool:": ["pool:default"],
        "home:x": [],
        "state:qu": ["state:quarantined"],
    }
    with httpx2.Client(base_url=stage.served.url, cookies={"leasekeeper_token": stage.served.token}) as client:
        for term, terms in suggested.items():
            found = client.get("/ui/suggest", params={"of": "profiles", "term": term}).json()
            assert [each["term"] for each in found] == terms, term
        found = client.get("/ui/suggest", params={"of": "runs", "term": "stopped:LOGIN"}).json()
        assert [each["term"] for each in found] == ["stopped:LOGIN_REQUIRED"]


def test_a_filter_is_applied_as_soon_as_the_answer_that_is_under_way_is_there(eyes: Eyes, stage: Stage) -> None:
    """Without the interval that reads the page again after changes."""
    held = list[Route]()

    def hold(route: Route) -> None:
        if held or "hx-request" not in route.request.headers:
            route.continue_()
        else:
            held.append(route)

    eyes.page.add_init_script("window.setInterval = () => 0")
    eyes.page.route("**/ui/?q=books*", hold)
    page = eyes.go("/ui/")
    page.get_by_label("Filter").fill("books")
    for _ in range(WAIT_MS // 50):
        if held:
            break
        page.wait_for_timeout(50)  # waits: until the page has asked for the first filter
    page.get_by_label("Filter").fill("books state:quarantined")
    page.wait_for_url("**quarantined")
    held[0].continue_()
    eyes.until("document.querySelectorAll('tbody tr').length === 1")


def test_a_filter_that_cannot_be_read_says_what_can_be_asked(eyes: Eyes) -> None:
    page = eyes.go("/ui/?q=state%3Anowhere")
    assert "available" in page.get_by_role("alert").inner_text()
    page = eyes.go("/ui/?q=color%3Ared")
    assert "account" in page.get_by_role("alert").inner_text()


def test_the_fleet_changes_by_itself_and_keeps_what_is_being_typed(eyes: Eyes, stage: Stage) -> None:
    page = eyes.go("/ui/")
    page.get_by_text("live", exact=True).wait_for()
    page.get_by_label("Filter").fill("books")
    page.evaluate("document.getElementById('p-books_us_5').dataset.kept = 'same element'")
    stage.do(stage.world.decide_profile(Action.DISABLE, "books_us_5"))
    page.locator("#p-books_us_5 .s-disabled").wait_for()
    assert page.get_by_label("Filter").input_value() == "books"
    assert page.locator("#p-books_us_5").get_attribute("data-kept") == "same element"
    stage.do(stage.world.decide_profile(Action.ENABLE, "books_us_5"))
    page.locator("#p-books_us_5 .s-available").wait_for()


def test_a_hidden_tab_has_no_stream_until_it_is_looked_at_again(eyes: Eyes, stage: Stage) -> None:
    eyes.page.add_init_script(WITHOUT_SHARED_WORKERS)
    eyes.page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => window.away === true})")
    page = eyes.go("/ui/")
    page.get_by_text("live", exact=True).wait_for()
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url))
    with page.expect_event("requestfailed", lambda request: "/ui/live" in request.url):
        page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    stage.do(stage.world.decide_profile(Action.DISABLE, "books_us_1", note="on leave"))
    page.wait_for_timeout(1500)  # waits: longer than a page that may refresh would take
    assert asked == []
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    page.locator("#p-books_us_1").get_by_text("disabled").wait_for()
    page.get_by_text("live", exact=True).wait_for()
    stage.do(stage.world.decide_profile(Action.ENABLE, "books_us_1", note="back"))
    page.locator("#p-books_us_1").get_by_text("available").wait_for()


def test_more_windows_than_a_browser_has_connections_are_all_live(eyes: Eyes, stage: Stage) -> None:
    """Windows that are looked at, on one screen: tabs of Playwright are never hidden."""
    paths = ("/ui/", "/ui/queue", "/ui/runs", *(f"/ui/profiles/books_us_{n}" for n in range(1, 6)))
    windows = [eyes.context.new_page() for _ in paths]
    for page, path in zip(windows, paths, strict=True):
        page.goto(f"{eyes.url}{path}")
        page.get_by_text("live", exact=True).wait_for()
    stage.do(stage.world.decide_profile(Action.DISABLE, "books_us_1", note="on leave"))
    windows[0].locator("#p-books_us_1").get_by_text("disabled").wait_for()
    windows[3].locator(".lead .s-disabled").wait_for()
    for page in windows[:3]:
        page.close()
    stage.do(stage.world.decide_profile(Action.ENABLE, "books_us_1", note="back"))
    windows[3].locator(".lead .s-available").wait_for()
    for page in windows[3:]:
        page.close()


def test_a_change_between_the_page_and_its_stream_is_shown(eyes: Eyes, stage: Stage) -> None:
    held = list[Route]()

    def hold(route: Route) -> None:
        held.append(route)

    # Requests of a shared worker cannot be delayed by a test; without shared workers the page does the same itself.
    eyes.page.add_init_script(WITHOUT_SHARED_WORKERS)
    eyes.page.route("**/ui/live?*", hold)
    stage.do(stage.served.service.signals.feed())  # somebody watches already
    page = eyes.go("/ui/profiles/books_us_5")
    stage.do(stage.world.decide_profile(Action.DISABLE, "books_us_5"))

    async def published() -> None:
        await (await stage.served.service.signals.feed()).read()

    stage.do(published())
    for _ in range(WAIT_MS // 50):
        if held:
            break
        page.wait_for_timeout(50)  # waits: until the page has asked for its stream
    held[0].continue_()
    page.locator(".lead .s-disabled").wait_for()
    stage.do(stage.world.decide_profile(Action.ENABLE, "books_us_5"))


def test_a_stream_from_a_forgotten_position_begins_with_a_change(stage: Stage) -> None:
    cookies = {"leasekeeper_token": stage.served.token}
    with httpx2.stream("GET", f"{stage.served.url}/ui/live?after=nonsense", cookies=cookies) as answer:
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(3)] == ["retry: 2000", "", "event: change"]


def test_an_open_form_is_left_alone_while_the_page_changes(eyes: Eyes, stage: Stage) -> None:
    page = eyes.go("/ui/profiles/books_us_5")
    page.get_by_text("live", exact=True).wait_for()
    page.locator("summary", has_text="Disable").click()
    note = page.locator("details[open] textarea")
    note.fill("half a note")
    stage.submits("books_us_5")
    page.evaluate("dispatchEvent(new Event('visibilitychange'))")
    assert note.input_value() == "half a note"
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="All jobs of this profile").wait_for()


def test_a_run_shows_its_phases_its_screenshot_and_the_last_commands(eyes: Eyes, stage: Stage) -> None:
    (run,) = stage.do(stage.world.all(RunRecord, profile_id="books_us_4"))
    page = eyes.go(f"/ui/runs/{run.run_id}")
    assert page.locator(".phases th[scope=row]").all_inner_texts()[-4:] == ["launch", "task", "evidence", "release"]
    eyes.until("[...document.querySelectorAll('.shot img')].every(each => each.complete && each.naturalWidth === 1)")
    eyes.sees("Page.navigate")
    eyes.sees("SECURITY_PROMPT")


def test_a_run_says_how_its_job_came_to_its_lease(eyes: Eyes, stage: Stage) -> None:
    (run,) = stage.do(stage.world.all(RunRecord, profile_id="books_us_4"))
    page = eyes.go(f"/ui/runs/{run.run_id}")
    happened = page.get_by_role("region", name="Scheduling").locator("td[data-label=Event]").all_inner_texts()
    assert happened == ["job submitted", "lease granted"]
    assert page.locator(".phases th[scope=row]").first.inner_text() == "wait"


def test_a_profile_shows_its_lease_its_conflicts_and_the_environment_that_was_found(eyes: Eyes, stage: Stage) -> None:
    page = eyes.go("/ui/profiles/shoes_de_1")
    lease = page.get_by_role("region", name="Current lease")
    assert "w1" in lease.inner_text()
    assert "in " in lease.locator("td[data-label='Lease ends']").inner_text()
    assert "Split the work" in page.get_by_role("region", name="Conflicts").inner_text()
    language = page.get_by_role("region", name="Environment").locator("tr", has_text="language")
    assert "de-DE" in language.inner_text()
    stage.do(stage.world.declare(profile("books_us_6", "books_us", language="de-DE")))
    stage.runs("books_us_6", actual={"language": "en-US"})
    row = eyes.go("/ui/profiles/books_us_6").get_by_role("region", name="Environment").locator("tr", has_text="lang")
    assert row.locator(".warn").inner_text() == "en-US"


def test_doctor_answers_in_the_settings(eyes: Eyes) -> None:
    page = eyes.go("/ui/settings")
    page.get_by_role("link", name="Ask doctor").click()
    row = page.get_by_role("region", name="Installation").locator("tr", has_text="Can the store be reached?")
    row.get_by_text("ok", exact=True).wait_for()
    assert page.get_by_role("region", name="Before you scale: the queue").locator("tbody tr").count() == 9
    no_probe = page.locator("tr", has_text="Is an account checked before its browser starts?")
    assert "Set LEASEKEEPER_PROBE_URL." in no_probe.inner_text()


def test_empty_pages_teach_the_first_step(browser: Browser, empty: Stage) -> None:
    with looking(browser, empty.served.url, empty.served.token) as eyes:
        for path, command in (
            ("/ui/", "leasekeeper apply"),
            ("/ui/queue", "leasekeeper submit"),
            ("/ui/runs", "leasekeeper up"),
            ("/ui/settings", "leasekeeper up"),
        ):
            assert command in eyes.go(path).locator(".empty").inner_text()
        eyes.go("/ui/reviews")
        eyes.sees("Nothing waits for you")
        eyes.go("/ui/dead-letters")
        eyes.sees("No dead letters")
        eyes.go("/ui/conflicts")
        eyes.sees("No conflicts")


def test_conflicts_say_who_collides_and_what_helps(eyes: Eyes) -> None:
    row = eyes.go("/ui/conflicts").locator("tbody tr", has_text="visit waits for visit")
    assert "same account routing 1" in row.inner_text()
    assert "Split the work" in row.inner_text()


def test_activity_shows_runs_over_time_and_new_events(eyes: Eyes, stage: Stage) -> None:
    page = eyes.go("/ui/activity?q=type%3Ajob_submitted")
    page.get_by_text("live", exact=True).wait_for()
    assert page.locator(".chart rect.bad").count() >= 1
    assert page.get_by_role("img", name="Leases at once, by pool").locator("polyline").count() >= 1
    assert page.get_by_role("img", name="How long jobs waited").locator("polyline").count() >= 2
    job = stage.submits("shoes_de_1", task="nobody_offers_this")
    page.locator(f".log a[title='{job.job_id}']").wait_for()


def test_charts_and_tables_are_readable_in_print(eyes: Eyes) -> None:
    page = eyes.go("/ui/activity")
    page.emulate_media(media="print")
    assert [page.locator(each).first.is_visible() for each in (".side", ".filter", ".chart", ".log")] == [
        False,
        False,
        True,
        True,
    ]
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_keys_move_through_rows_and_pages(eyes: Eyes) -> None:
    page = eyes.go("/ui/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") == "books_us_2"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("i")
    page.wait_for_url("**/ui/reviews")


def test_the_marked_row_stays_the_one_with_the_focus_when_others_come(eyes: Eyes, stage: Stage) -> None:
    page = eyes.go("/ui/queue")
    page.get_by_text("live", exact=True).wait_for()
    page.keyboard.press("j")
    marked = page.evaluate("document.querySelector('tr.here').id")
    job = stage.submits("shoes_de_1", task="nobody_offers_this")
    page.locator(f"#j-{job.job_id}").wait_for()
    eyes.until(f"document.querySelector('tr.here')?.id === '{marked}'")
    assert page.evaluate("document.activeElement.closest('tr').id") == marked
    page.keyboard.press("k")
    assert page.evaluate("document.querySelector('tr.here').id") == f"j-{job.job_id}"


def test_columns_keep_their_width_while_times_go_on(eyes: Eyes) -> None:
    page = eyes.go("/ui/")
    widths = [
        page.evaluate(
            """text => [...document.querySelectorAll('tbody time')].map(each => {
              each.textContent = text;
              return each.closest('td').getBoundingClientRect().width;
            })""",
            text,
        )
        for text in ("1 s ago", "in 119 min")
    ]
    assert widths[0] == widths[1]


def test_the_open_review_is_in_sight_in_the_list_on_a_phone(browser: Browser, stage: Stage) -> None:
    reviews = stage.do(stage.world.all(Review, open="1"))
    newest = max(reviews, key=lambda review: review.opened_at)
    phone = {"viewport": {"width": 360, "height": 740}}
    with looking(browser, stage.served.url, stage.served.token, **phone) as eyes:
        eyes.go(f"/ui/reviews?review={newest.review_id}").get_by_text("live", exact=True).wait_for()
        assert eyes.page.evaluate(
            """() => {
              const list = document.querySelector('.items').getBoundingClientRect();
              const open = document.querySelector('.items [aria-current]').getBoundingClientRect();
              return list.height < 200 && open.top >= list.top && open.bottom <= list.bottom;
            }"""
        )


def test_what_is_not_there_is_a_page_that_says_so(eyes: Eyes) -> None:
    eyes.go("/ui/profiles/nobody", 404)
    eyes.sees("there is no profile nobody".capitalize())


def test_the_address_of_a_form_leads_to_the_page_that_it_belongs_to(stage: Stage) -> None:
    forms = {
        "/ui/settings/tokens": "/ui/settings",
        "/ui/settings/endpoints": "/ui/settings",
        "/ui/decide": "/ui/",
        "/ui/decide-all": "/ui/",
        "/ui/only": "/ui/",
        "/ui/sign-out": "/ui/",
        "/ui/profiles/books_us_1/open": "/ui/profiles/books_us_1",
        "/ui/runs/some-run/take": "/ui/runs/some-run",
        "/ui/runs/some-run/live/end": "/ui/runs/some-run/live",
    }
    cookies = {"leasekeeper_token": stage.served.token}
    with httpx2.Client(base_url=stage.served.url, cookies=cookies) as client:
        led = {path: client.get(path) for path in forms}
        assert {path: answer.status_code for path, answer in led.items()} == dict.fromkeys(forms, 303)
        root = httpx2.URL(stage.served.url).path
        assert {path: each.headers["location"].removeprefix(root) for path, each in led.items()} == forms
        assert client.put("/ui/queue").status_code == 405
        assert "takes no POST" in client.post("/ui/queue").text
        # A form that was refused shows why, and does not replace it by refreshing itself.
        refused = client.post("/ui/settings/tokens", data={"name": "robot"})
        assert (refused.status_code, 'data-live=""' in refused.text) == (400, True)
