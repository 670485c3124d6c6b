"""Pages about real browsers: a run that failed and was recorded, and a session that goes on while one looks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser

from leasekeeper import App, Fail, Run
from leasekeeper.core.decisions import Review
from leasekeeper.core.leases import RunRecord
from leasekeeper.encryption import new_key
from tests.conformance.world import profile
from tests.dashboard.stage import EVIL, Eyes, Stage, examine, looking
from tests.runtime.browsing import house
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE
from tests.serving import ServerThread

AT_ITS_END = "(({shown, frames}) => Number(shown) === frames - 1)(document.querySelector('[data-recording]').dataset)"


@pytest.fixture(scope="module")
def real(server: ServerThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A store that a worker with a browser has left, behind a server that runs sessions."""
    folder = tmp_path_factory.mktemp("real")
    url, data = f"sqlite:///{folder}/leasekeeper.db", folder / "data"
    server.begin(_fails(url, folder)).result(PATIENCE)
    served = server.serve(url, data_dir=str(data), secret_key=new_key(), sessions=1, close_after=30.0)
    yield Stage(served, data)
    served.close()


async def _fails(url: str, folder: Path) -> None:
    app = App()

    @app.task("check_orders", record=True)
    async def check_orders(run: Run) -> None:
        await run.page.goto(f"{shop.url}/?title=orders")
        await run.safe("dashboard_open", flush=True)
        await run.page.goto(f"{shop.url}/?title=login")
        raise Fail("LOGIN_REQUIRED", "the shop shows its form")

    with Shop() as shop:
        async with house(app, url, folder, profile("p1"), profile("p2")) as home:
            (job,) = await home.do(await home.submit("check_orders"))
            assert job.state == "review"


@pytest.fixture
def eyes(browser: Browser, real: Stage) -> Iterator[Eyes]:
    with looking(browser, real.served.url, real.served.token) as found:
        yield found


@pytest.fixture
def session(real: Stage) -> Iterator[dict[str, Any]]:
    """A session in `p2` that goes on during a test."""
    with httpx2.Client(base_url=real.served.url, headers=real.served.headers, timeout=60) as client:
        answer = client.post("/v1/sessions", json={"profile_id": "p2"})
        assert answer.status_code == 201, answer.text
        opened: dict[str, Any] = answer.json()
        yield opened
        client.delete(f"/v1/sessions/{opened['session_id']}")


def test_a_run_that_failed_shows_what_a_real_browser_left(eyes: Eyes, real: Stage) -> None:
    (run,) = real.do(real.world.all(RunRecord, profile_id="p1"))
    path = f"/ui/runs/{run.run_id}"
    assert examine(eyes, path) == []
    page = eyes.page
    names = page.locator(".phases th[scope=row]").all_inner_texts()
    assert names == ["wait", "lease", "launch", "task", "evidence", "release"]
    commands = page.locator("section", has_text="Last commands to the browser").locator(".entries")
    assert "Page.navigate" in commands.inner_text()
    assert "http://127.0.0.1" in commands.inner_text()
    page.locator(".shot img").scroll_into_view_if_needed()
    eyes.until("document.querySelector('.shot img').naturalWidth > 100")
    # The recording plays to its end, in a browser that allows no script but ours.
    page.locator("[data-recording][data-shown]").wait_for()
    page.get_by_role("button", name="Play").click()
    end = page.evaluate("document.querySelector('[type=range]').max")
    page.get_by_role("slider", name="Time in the recording").fill(end)
    eyes.until(AT_ITS_END)


def test_the_inbox_shows_what_the_browser_was_asked_to_do(eyes: Eyes, real: Stage) -> None:
    (review,) = real.do(real.world.all(Review, open="1", profile_id="p1", target="profile"))
    assert examine(eyes, f"/ui/reviews?review={review.review_id}") == []
    assert "Page.navigate" in eyes.page.locator(".review .entries").inner_text()


def test_a_live_view_is_accessible_and_shows_a_note_of_control_as_text(
    eyes: Eyes, real: Stage, session: dict[str, Any]
) -> None:
    run_id = session["session_id"]
    path = f"/ui/runs/{run_id}/live"
    eyes.go(path).locator("#lv[data-frames]").wait_for()
    with httpx2.Client(base_url=real.served.url, headers=real.served.headers, timeout=60) as client:
        taken = client.post(f"/v1/runs/{run_id}/take", json={"note": EVIL})
        assert taken.status_code == 200, taken.text
    path = f"/ui/runs/{taken.json()['run_id']}/live"
    assert examine(eyes, path) == []
    page = eyes.page
    page.locator("#lv[data-frames]").wait_for()
    eyes.sees(EVIL)
    assert page.title() != "owned"
    assert page.locator("img[src='x']").count() == 0
