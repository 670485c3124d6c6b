"""A person takes the browser of a session, over HTTP and in the live view."""

import asyncio
from pathlib import Path
from typing import Any

from playwright.async_api import async_playwright, expect

from leasekeeper.browsers.finding import find_browser
from leasekeeper.core.decisions import Review
from leasekeeper.core.leases import RunRecord
from tests.serving import ServerThread
from tests.sessions.stage import Stage, stage
from tests.sessions.test_live_view import FORM, WAIT_MS, watching


async def control(at: Stage, run: str, action: str, **body: Any) -> tuple[int, dict[str, Any]]:
    answer = await at.api.post(f"/v1/runs/{run}/{action}", json=body)
    return answer.status_code, answer.json()


async def test_a_person_takes_the_browser_of_an_agent(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with stage(server, sqlite_url, tmp_path, sessions=1) as at, async_playwright() as playwright:
        session = await at.open()
        agent = await playwright.chromium.connect_over_cdp(session["cdp_url"])
        shown = agent.contexts[0].pages[0]
        await shown.goto(f"data:text/html,{FORM}")
        gone = asyncio.Event()
        agent.on("disconnected", lambda _: gone.set())
        async with watching(at, session, at.served.token) as page:
            await page.fill("#control input[name=note]", "looks odd")
            await page.get_by_role("button", name="Take control").click()
            await expect(page.locator("#flash")).to_contain_text("you have control")
            await expect(page.locator("#control")).to_contain_text("took control")
            await expect(page.locator("#lv-control")).to_contain_text("You can act")
            await page.locator("#lv[data-frames]").wait_for()
            async with asyncio.timeout(60):
                await gone.wait()
            old = await at.api.get("/v1/sessions/" + session["session_id"])
            assert (old.json()["state"], old.json()["reason"]) == ("ended", "TAKEN_OVER")
            refused = await at.post(session, "checkpoint", step="late")
            assert refused.status_code == 410
            status, second = await control(at, "p1", "take")
            assert (status, second["data"]["cause"]) == (409, "taken_already")
            status, back = await control(at, "p1", "hand-back")
            assert (status, back["data"]["cause"]) == (409, "not_resumable")
            busy = await at.api.post("/v1/sessions", json={"profile_id": "p1"})
            assert busy.status_code == 409
            await page.select_option("#control select[name=profile]", "quarantine")
            await page.get_by_role("button", name="Close and release").click()
            await expect(page.locator("#flash")).to_contain_text("released: profile p1 is quarantined")
        runs = (await at.home.store.find(RunRecord, limit=2)).items
        assert [(run.purpose, run.stop_reason) for run in runs] == [("manual", None), ("session", "TAKEN_OVER")]
        assert runs[0].worker_id.startswith("human:")
        assert runs[0].token == runs[1].token + 1


async def test_only_who_may_operate_takes_control(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with stage(server, sqlite_url, tmp_path) as at, async_playwright() as playwright:
        session = await at.open()
        reader = await asyncio.to_thread(at.served.new_token, "read")
        refused = await at.api.post(
            f"/v1/runs/{session['session_id']}/take", json={}, headers={"Authorization": f"Bearer {reader}"}
        )
        assert refused.status_code == 403
        browser = await playwright.chromium.launch(executable_path=find_browser().path, args=["--no-sandbox"])
        page = await browser.new_page()
        page.set_default_timeout(WAIT_MS)
        await page.goto(f"{at.served.url}/ui/sign-in")
        await page.fill("input[name=token]", reader)
        await page.click("form button")
        await page.goto(session["live_view_url"])
        await expect(page.locator("#control")).to_contain_text("has control")
        await expect(page.get_by_role("button", name="Take control")).to_have_count(0)
        await browser.close()
        status, taken = await control(at, session["session_id"], "take", note="mine")
        assert (status, taken["human"], taken["note"]) == (200, True, "mine")
        shown = (await at.api.get(f"/v1/runs/{taken['run_id']}/control")).json()
        assert (shown["holder"], shown["may_hand_back"]) == (taken["holder"], False)
        status, released = await control(at, taken["run_id"], "release", note="done")
        assert (status, released["profile_state"]) == (200, "available")
        status, _ = await control(at, taken["run_id"], "take")
        assert status == 410


async def ask(at: Stage, session: dict[str, Any], **body: Any) -> dict[str, Any]:
    answer = await at.post(session, "request-human", **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def open_reviews(at: Stage) -> list[str]:
    return [each.summary for each in (await at.home.store.find(Review, {"open": "true"})).items]


async def test_an_agent_asks_for_a_person_and_goes_on(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with stage(server, sqlite_url, tmp_path, sessions=1) as at, async_playwright() as playwright:
        session = await at.open(idle_timeout_s=600)
        session_id = session["session_id"]
        assert (await at.post(session, "request-human")).status_code == 400, "nothing was asked before"

        nobody = await ask(at, session, message="solve the prompt", timeout_s=1, wait_s=60)
        assert (nobody["state"], await open_reviews(at)) == ("nobody_came", [])

        waiting = await ask(at, session, message="solve the prompt", timeout_s=60)
        assert (waiting["state"], await open_reviews(at)) == ("waiting", ["solve the prompt"])
        assert (await at.api.get(f"/v1/sessions/{session_id}")).json()["asks"] == "solve the prompt"
        answering = asyncio.create_task(ask(at, session, wait_s=60))
        status, _ = await control(at, session_id, "hand-back", outcome="solved", note="sms code")
        answered = await answering
        assert (status, answered["state"], answered["outcome"], answered["note"]) == (
            200,
            "answered",
            "solved",
            "sms code",
        )
        assert (answered["session_id"], answered["cdp_url"], await open_reviews(at)) == (session_id, None, [])

        agent = await playwright.chromium.connect_over_cdp(session["cdp_url"])
        await agent.contexts[0].pages[0].goto("data:text/html,<title>prompt</title>")
        gone = asyncio.Event()
        agent.on("disconnected", lambda _: gone.set())
        await ask(at, session, message="sign in", timeout_s=60)
        status, taken = await control(at, session_id, "take")
        assert (status, taken["human"], taken["may_hand_back"]) == (200, True, True)
        async with asyncio.timeout(60):
            await gone.wait()
        assert (await ask(at, session))["state"] == "waiting"
        assert (await at.post(session, "checkpoint", step="late")).status_code == 410
        status, _ = await control(at, taken["run_id"], "hand-back", outcome="signed_in")
        assert status == 200
        back = await ask(at, session, wait_s=60)
        assert (back["state"], back["outcome"]) == ("answered", "signed_in")
        assert back["session_id"] not in (session_id, taken["run_id"])
        agent = await playwright.chromium.connect_over_cdp(back["cdp_url"])
        page = agent.contexts[0].pages[0]
        assert await page.title() == "prompt", "it is the same browser"
        await page.goto("data:text/html,<title>on</title>")
        assert (await at.post(back, "checkpoint", step="signed_in")).status_code == 200

        await ask(at, back, message="look again", timeout_s=60)
        status, taken = await control(at, back["session_id"], "take")
        status, _ = await control(at, taken["run_id"], "release", note="no")
        over = await ask(at, back, wait_s=60)
        assert (status, over["state"]) == (200, "over")
        assert "did not hand it back" in over["next"]
        runs = (await at.home.store.find(RunRecord, limit=4)).items
        assert [run.purpose for run in runs] == ["manual", "session", "manual", "session"]
        assert [run.token for run in runs] == [4, 3, 2, 1]
        assert (await at.api.get("/v1/profiles/p1")).json()["state"] == "available"
