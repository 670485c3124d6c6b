"""Sessions over HTTP: opened, used with their own token, fenced, ended by whoever and whatever ends them."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from playwright.async_api import async_playwright
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.notes import Note
from leasekeeper.runtime import session_opening
from leasekeeper.runtime.session_host import SessionOrder
from tests.conformance.world import profile
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE, until
from tests.serving import ServerThread
from tests.sessions.stage import Stage, stage


async def test_a_session_is_a_run_that_any_program_drives(
    server: ServerThread, sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with Shop() as shop:
        async with stage(server, sqlite_url, tmp_path) as at, async_playwright() as playwright:
            opened = await at.open(idle_timeout_s=300)
            session_id = opened["session_id"]
            assert opened["fencing_token"] == 1
            assert opened["cdp_url"].endswith(f"/v1/sessions/{session_id}/cdp?token={opened['session_token']}")
            base, bearer = opened["cdp_url"].partition("?")[0], opened["session_token"]
            ways: list[dict[str, Any]] = [
                {"endpoint_url": opened["cdp_url"]},
                {"endpoint_url": base, "headers": {"Authorization": f"Bearer {bearer}"}},
                {"endpoint_url": base.replace("ws:", "http:"), "headers": {"Authorization": f"Bearer {bearer}"}},
            ]
            for way in ways:
                browser = await playwright.chromium.connect_over_cdp(**way)
                page = browser.contexts[0].pages[0]
                await page.goto(f"{shop.url}/?title=ann&by=ann")
                assert await page.title() == "ann"
                await browser.close()
            assert (await at.post(opened, "checkpoint", step="list_open")).status_code == 200
            assert (await at.post(opened, "mutating", name="order", action="enter")).status_code == 200
            twice = await at.post(opened, "mutating", name="other", action="enter")
            assert (twice.status_code, twice.json()["data"]["cause"]) == (409, "section_open")
            assert (await at.post(opened, "mutating", name="order", action="leave")).status_code == 200
            assert (await at.post(opened, "note", text="two orders were open")).status_code == 200
            shown = (await at.api.get(f"/v1/sessions/{session_id}")).json()
            assert (shown["state"], shown["profile_id"], shown["clients"]) == ("open", "p1", 0)
            assert (await at.api.get(f"/v1/sessions/{session_id}/why")).json()["profile"]["profile_id"] == "p1"
            done = await at.release(opened)
            assert (done["state"], done["reason"], done["profile_state"]) == ("ended", None, "available")
            assert (await at.release(opened))["state"] == "ended", "a second release changes nothing"
            run: Any = await at.last_run()
            assert (run.run_id, run.purpose, run.result) == (session_id, "session", "completed")
            assert (run.last_safe_step, run.final_url) == ("list_open", f"{shop.url}/")
            (note,) = (await at.home.store.find(Note)).items
            assert (note.text, note.run_id, note.profile_id) == ("two orders were open", session_id, "p1")
            assert run.evidence["keeper"]["clean_close"]
    assert "lks_" not in caplog.text, "a session's token is in no log"


async def test_a_busy_profile_is_409_with_its_holder_or_is_waited_for(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with stage(server, sqlite_url, tmp_path, profile("p1"), profile("p2", account_id="a2")) as at:
        first = await at.open()
        busy = await at.api.post("/v1/sessions", json={"profile_id": "p1"})
        assert (busy.status_code, busy.json()["code"]) == (409, "PROFILE_NOT_AVAILABLE")
        assert busy.json()["data"]["holder"] == first["session"]["worker_id"]
        waiting = asyncio.create_task(at.open(wait_s=120))
        await at.release(first)
        second = await waiting
        assert second["fencing_token"] == 2
        third = await at.open(profile_id=None, account_id="a2")
        full = await at.api.post("/v1/sessions", json={"pool": "default"})
        assert (full.status_code, full.json()["data"]["cause"]) == (409, "sessions_full")
        assert [each["session_id"] for each in (await at.api.get("/v1/sessions")).json()["items"]] == [
            third["session_id"],
            second["session_id"],
            first["session_id"],
        ]
        await at.release(third)
        assert (await at.open(profile_id=None, pool="default"))["session"]["profile_id"] == "p2"
        # The rest is ended with the server.


async def refused(url: str, host: str | None = None, **headers: str) -> tuple[int, dict[str, Any]]:
    """What an upgrade is answered; with `host`, of a server that is there and goes by another name."""
    where: dict[str, Any] = {} if host is None else {"host": host, "port": urlsplit(url).port}
    with pytest.raises(InvalidStatus) as error:
        async with connect(url, additional_headers=headers, **where):
            pass
    answer = error.value.response
    return answer.status_code, json.loads(answer.body or b"{}")


async def test_after_the_lease_is_lost_nothing_passes_and_the_client_gets_the_reason(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    with Shop() as shop:
        async with stage(server, sqlite_url, tmp_path) as at, async_playwright() as playwright:
            opened = await at.open()
            url = opened["cdp_url"]
            page = (await playwright.chromium.connect_over_cdp(url)).contexts[0].pages[0]
            await page.goto(f"{shop.url}/?by=ann")
            lease_id = opened["session"]["lease_id"]
            await at.home.store.decide(
                Decision(target=Target.LEASE, id=lease_id, action=Action.REVOKE, note="now", actor="bob")
            )
            await until_state(at, opened, "ended")
            with pytest.raises(Exception, match="closed"):
                await page.goto(f"{shop.url}/?by=late")
            assert shop.of("late") == []
            code, problem = await refused(url)
            assert (code, problem["code"]) == (410, "SESSION_ENDED")
            assert "revoked" in problem["detail"]
            late = await at.post(opened, "checkpoint", step="late")
            assert (late.status_code, late.json()["data"]["reason"]) == (410, "LEASE_LOST")
            for path in (at.home.data / "open").glob("*"):
                path.unlink()  # nobody sweeps here: the keeper's report waits for somebody who does


async def until_state(at: Stage, opened: dict[str, Any], state: str) -> dict[str, Any]:
    async def look() -> dict[str, Any]:
        shown: dict[str, Any] = (await at.api.get(f"/v1/sessions/{opened['session_id']}")).json()
        return shown if shown["state"] == state else {}

    return await until(look)


async def test_a_session_ends_by_itself_or_by_its_client(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with stage(server, sqlite_url, tmp_path) as at:
        idle = await at.open(idle_timeout_s=1)
        assert (await until_state(at, idle, "ended"))["message"] == "no client for 1 s"
        left = await at.open(on_disconnect="release")
        async with connect(left["cdp_url"]) as client:
            await client.send('{"id": 7, "method": "Browser.getVersion"}')
            answer = json.loads(await asyncio.wait_for(client.recv(), PATIENCE))
            assert (answer["id"], "product" in answer["result"]) == (7, True)
        assert (await until_state(at, left, "ended"))["reason"] is None
        closed = await at.open()
        async with connect(closed["cdp_url"]) as client:
            await client.send('{"id": 1, "method": "Browser.close"}')
            await asyncio.wait_for(client.wait_closed(), PATIENCE)
            assert client.close_code == 4410
        assert (await until_state(at, closed, "ended"))["message"] == "a client closed the browser"
        failed = await at.open()
        answer = await at.post(failed, "release", reason="LOGIN_REQUIRED", message="the shop wants a password")
        assert answer.json()["profile_state"] == "review_required"


async def test_a_checkpoint_needs_no_page_and_one_that_comes_too_late_is_refused(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with stage(server, sqlite_url, tmp_path) as at, async_playwright() as playwright:
        opened = await at.open()
        browser = await playwright.chromium.connect_over_cdp(opened["cdp_url"])
        first = browser.contexts[0].pages[0]
        second = await browser.contexts[0].new_page()
        await first.close()
        for step in ("a client closed the first page", "and every other"):
            answer = await at.post(opened, "checkpoint", step=step)
            assert answer.status_code == 200, answer.text
            await second.close()
        late = [at.post(opened, "checkpoint", step=f"late {number}") for number in range(8)]
        released, *answers = await asyncio.gather(at.post(opened, "release"), *late)
        assert released.json()["profile_state"] == "available"
        assert {answer.status_code for answer in answers} <= {200, 410}, [answer.text for answer in answers]


async def test_a_release_inside_a_section_is_not_answered_as_completed(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with stage(server, sqlite_url, tmp_path, profile("p1", driver="null"), drivers="null") as at:
        opened = await at.open()
        assert (await at.post(opened, "mutating", name="pay", action="enter")).status_code == 200
        released = (await at.post(opened, "release", outcome="completed")).json()
        assert (released["reason"], released["profile_state"]) == ("TASK_ERROR", "quarantined")
        assert "pay" in released["message"]
        assert (await at.last_run()).stop_reason == "TASK_ERROR"


async def test_a_session_is_for_its_token_and_for_those_who_may(
    server: ServerThread, sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profiles = (*(profile(name, driver="null") for name in ("p1", "p3")), profile("p2", account_id="a2", driver="null"))
    async with stage(server, sqlite_url, tmp_path, *profiles, drivers="null") as at:

        def client(*scopes: str, **limits: Any) -> httpx2.AsyncClient:
            text = at.served.new_token(*scopes, **limits)
            headers = {"Authorization": f"Bearer {text}"}
            return httpx2.AsyncClient(base_url=at.served.url, headers=headers, timeout=PATIENCE)

        opened = await at.open()
        one = f"/v1/sessions/{opened['session_id']}"
        step = {"step": "s"}
        async with await asyncio.to_thread(client, "read") as reader:
            assert (await reader.get(one)).status_code == 200
            denied = await reader.post("/v1/sessions", json={"profile_id": "p2"})
            assert (denied.status_code, denied.json()["code"]) == (403, "SCOPE_MISSING")
            assert (await reader.post(f"{one}/checkpoint", json=step)).json()["code"] == "SCOPE_MISSING"
        async with await asyncio.to_thread(lambda: client("read", "work", accounts=["a2"])) as other:
            denied = await other.post("/v1/sessions", json={"profile_id": "p1"})
            assert (denied.status_code, denied.json()["code"]) == (403, "ACCOUNT_NOT_ALLOWED")
            for account in ("shop", "nobody"):
                denied = await other.post("/v1/sessions", json={"account_id": account})
                assert denied.json()["code"] == "ACCOUNT_NOT_ALLOWED", "and not which profiles it has"
            assert (await other.get("/v1/sessions")).json() == {"items": []}
            own = (await other.post("/v1/sessions", json={"profile_id": "p2"})).json()
            assert len((await other.get("/v1/sessions")).json()["items"]) == 1
        async with await asyncio.to_thread(client, "work") as worker:
            denied = await worker.post(f"{one}/release", json={})
            assert (denied.status_code, denied.json()["code"]) == (403, "LEASE_OF_ANOTHER_TOKEN")
        wrong = await at.api.post(f"{one}/checkpoint", json=step, headers=bearer(own["session_token"]))
        assert wrong.status_code == 401, "the token of another session"
        assert (await refused(opened["cdp_url"] + "x"))[0] == 401
        assert (await refused(opened["cdp_url"], Origin="https://evil.example"))[0] == 403
        assert (await refused(opened["cdp_url"].replace("127.0.0.1", "evil.example"), "127.0.0.1"))[0] == 421
        code, problem = await refused(opened["cdp_url"])
        assert (code, problem["data"]["cause"]) == (409, "client_refused"), "this profile has no browser"
        root = at.served.url
        for path in ("/json/version", "/json/version/", f"{one}/cdp/json/version"):
            found = await at.api.get(path, headers=bearer(opened["session_token"]))
            assert found.json()["webSocketDebuggerUrl"] == opened["cdp_url"]
            assert (await at.api.get(path, params={"token": opened["session_token"]})).status_code == 200
        assert (await at.api.get(f"{one}/cdp", headers=bearer(opened["session_token"]))).status_code == 400
        assert root in opened["cdp_url"].replace("ws:", "http:")
        async with await asyncio.to_thread(client, "operate") as operator:
            assert (await operator.post(f"{one}/release", json={"outcome": "failed"})).json()["reason"] == "TASK_ERROR"
        assert (await at.post(own, "release")).status_code == 200
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


async def test_a_caller_that_leaves_while_it_waits_gets_no_session(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with stage(server, sqlite_url, tmp_path, profile("p1", driver="null"), drivers="null") as at:
        first = await at.open()
        with pytest.raises(httpx2.TimeoutException):
            await at.api.post("/v1/sessions", json={"profile_id": "p1", "wait_s": 500}, timeout=0.5)
        await at.release(first)
        second = await at.open(wait_s=60)
        assert second["fencing_token"] == 2, "the one who left was given no lease in between"
        await at.release(second)


async def test_a_server_that_stops_ends_its_sessions_and_the_next_one_knows(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with stage(server, sqlite_url, tmp_path) as at:
        opened = await at.open()
        await asyncio.to_thread(at.served.close)
        run = await at.home.store.get(RunRecord, opened["session_id"])
        assert (run.stop_reason, run.result) == ("WORKER_STOPPED", "failed")
        assert (await at.home.lane()).state == "available"
    async with stage(server, sqlite_url, tmp_path / "again") as at:
        shown = (await at.api.get(f"/v1/sessions/{opened['session_id']}")).json()
        assert (shown["state"], shown["reason"]) == ("ended", "WORKER_STOPPED")
        address = f"{at.served.url.replace('http:', 'ws:')}/v1/sessions/{opened['session_id']}/cdp?token=lks_x"
        code, problem = await refused(address)
        assert (code, problem["code"]) == (410, "SESSION_ENDED")
        back = await at.post(opened, "checkpoint", step="late")
        assert (back.status_code, back.json()["code"]) == (410, "SESSION_ENDED")
        nowhere = await at.api.get("/v1/sessions/nothing")
        assert (nowhere.status_code, nowhere.json()["code"]) == (404, "NOT_FOUND")


async def test_what_is_wrong_with_an_order_is_said(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with stage(server, sqlite_url, tmp_path, profile("p1", driver="null"), sessions=0) as at:
        for body in ({}, {"profile_id": "p1", "pool": "default"}, {"account_id": "a", "labels": {"x": "y"}}):
            assert (await at.api.post("/v1/sessions", json=body)).status_code == 400
        wrong = (await at.api.post("/v1/sessions", json={"profile_id": "p1", "idle_timeout_s": -1})).json()
        assert wrong["problems"][0]["where"] == "idle_timeout_s"
        unknown = (await at.api.post("/v1/sessions", json={"account_id": "nobody"})).json()
        assert unknown["code"] == "UNKNOWN_ACCOUNT"
        closed = (await at.api.post("/v1/sessions", json={"profile_id": "p1"})).json()
        assert closed["data"]["cause"] == "sessions_not_offered"


async def test_a_server_that_stops_leaves_nothing_of_the_orders_under_way(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    profiles = [profile(name, driver="null") for name in ("p1", "p2")]
    async with stage(server, sqlite_url, tmp_path, *profiles, sessions=1, drivers="null") as at:
        host = at.served.service.sessions.here
        await at.open()
        waiting = asyncio.create_task(at.api.post("/v1/sessions", json={"profile_id": "p2", "wait_s": 500}))

        async def waits() -> bool:
            return bool(host._places._waiters)

        await until(waits)
        await asyncio.to_thread(at.served.close)
        answer = await waiting
        assert (answer.status_code, answer.json()["data"]["cause"]) == (409, "sessions_not_offered")
        assert [each.profile_id for each in (await at.home.store.find(RunRecord)).items] == ["p1"]


async def test_a_caller_that_is_cancelled_again_and_again_leaves_no_lease(
    server: ServerThread, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(server, sqlite_url, tmp_path, profile("p1", driver="null"), drivers="null") as at:
        begun, go_on = asyncio.Event(), asyncio.Event()
        opening = session_opening._open

        async def slowly(*arguments: Any) -> Any:
            begun.set()
            await go_on.wait()
            return await opening(*arguments)

        monkeypatch.setattr(session_opening, "_open", slowly)

        async def leave() -> None:
            order = SessionOrder(owner="somebody", profile_id="p1")
            caller = asyncio.create_task(at.served.service.sessions.here.open(order))
            await begun.wait()
            for _ in range(3):
                caller.cancel()
                await asyncio.sleep(0)  # waits: one turn of the loop, in which the cancellation arrives
            go_on.set()
            await asyncio.gather(caller, return_exceptions=True)

        await asyncio.to_thread(at.served.run, leave())
        await asyncio.to_thread(at.served.close)
        assert (await at.last_run()).stop_reason == "TASK_ERROR"
        assert (await at.home.lane()).state == "available"
