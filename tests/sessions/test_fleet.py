"""Sessions in a fleet: the browser runs beside a worker on another machine, which has dialled the server.

The worker's half runs in this process, the server's in its thread; `test_faults` has both as processes.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect

from leasekeeper import config as settings
from leasekeeper.app import App
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.leases import RunRecord
from leasekeeper.runtime import machine
from leasekeeper.runtime.session_link import PIECE_BYTES, WINDOW_BYTES, Kind, Link
from leasekeeper.runtime.session_offer import browsers_offered
from leasekeeper.stores import open_store
from tests.conformance.world import profile
from tests.runtime.browsing import house
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE, until
from tests.runtime.test_machine import disk, full
from tests.serving import ServerThread
from tests.sessions.clients import Driver
from tests.sessions.stage import Stage
from tests.sessions.test_sessions import refused
from tests.sessions.test_taking_sessions import ask, control, open_reviews


@dataclass
class Fleet(Stage):
    """A server that runs no browser itself, and the machines of its workers."""

    folder: Path

    @asynccontextmanager
    async def worker(
        self, name: str = "w1", *, worker_id: str | None = None, sessions: int = 2, pool: str = "default"
    ) -> AsyncIterator[None]:
        """A worker's sessions, offered to the server while the block lasts."""
        data = self.folder / name
        token = await asyncio.to_thread(self.served.new_token, "read", "work", name=name)
        loaded = settings.load(
            {},
            store=self.served.url,
            token=token,
            data_dir=str(data),
            drivers=",".join(self.home.config.browsers.drivers),
        )
        store = await open_store(loaded.store, policy=loaded.policy, token=token)
        try:
            known = WorkerId(worker_id) if worker_id else None
            async with browsers_offered(store, loaded, sessions=sessions, pool=pool, worker_id=known):
                yield
        finally:
            await store.close()

    async def offered(self, count: int = 1) -> None:
        """Wait until so many workers are connected."""

        async def look() -> bool:
            return len(self.served.service.sessions.places) == count

        await until(look)

    async def restart(self, server: ServerThread, url: str) -> None:
        """Another server takes the place of this one."""
        path = "/" + "/".join(self.served.url.split("/")[3:])
        await asyncio.to_thread(self.served.close)
        self.served = await asyncio.to_thread(lambda: server.serve(url, path=path, data_dir=str(self.home.data)))
        self.api.headers.update(self.served.headers)


@asynccontextmanager
async def fleet(server: ServerThread, url: str, folder: Path, *profiles: Any, **more: Any) -> AsyncIterator[Fleet]:
    async with house(App(), url, folder, *profiles, **more) as home:
        served = await asyncio.to_thread(lambda: server.serve(url, data_dir=str(home.data), **more))
        try:
            async with httpx2.AsyncClient(base_url=served.url, headers=served.headers, timeout=PATIENCE) as api:
                at = Fleet(home=home, served=served, api=api, folder=folder)
                try:
                    yield at
                finally:
                    served = at.served
        finally:
            await asyncio.to_thread(served.close)


async def test_a_program_drives_a_browser_on_a_workers_machine(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    with Shop() as shop:
        async with fleet(server, sqlite_url, tmp_path) as at, at.worker():
            await at.offered()
            opened = await at.open(headless=True, on_disconnect="keep")
            assert opened["session"]["worker_id"]
            driver = await Driver.start("puppeteer", opened["cdp_url"], shop.url, "remote", times=5)
            assert await driver.rest() == ["clicked 5"]
            assert (tmp_path / "w1" / "profiles" / "p1").is_dir(), "the profile is the worker's"
            assert not (at.home.data / "profiles" / "p1").exists()
            for what, body in (
                ("checkpoint", {"step": "clicked", "flush": True}),
                ("mutating", {"name": "pay", "action": "enter"}),
                ("mutating", {"name": "pay", "action": "leave"}),
                ("note", {"text": "seen"}),
            ):
                answer = await at.post(opened, what, **body)
                assert answer.status_code == 200, answer.text
            run = await at.last_run()
            assert (run.last_safe_step, run.open_section) == ("clicked", None)
            again = await at.post(opened, "mutating", name="pay", action="leave")
            assert (again.status_code, again.json()["data"]["cause"]) == (409, "section_not_open")
            busy = await at.api.post("/v1/sessions", json={"profile_id": "p1"})
            assert (busy.status_code, busy.json()["code"]) == (409, "PROFILE_NOT_AVAILABLE")
            released = await at.release(opened)
            assert (released["state"], released["profile_state"]) == ("ended", "available")
            late = await at.post(opened, "checkpoint", step="late")
            assert (late.status_code, late.json()["code"]) == (410, "SESSION_ENDED")
            assert (await refused(opened["cdp_url"]))[0] == 410
            evidence = (await at.last_run()).evidence
            assert evidence, "a session is a run with evidence as any other"
        assert len(shop.of("remote", "/act")) == 5


async def test_an_order_goes_where_it_can_be_opened(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    people = (
        profile("p1", driver="null"),
        profile("p2", account_id="a2", driver="null"),
        profile("p3", account_id="a3", driver="null", pool="other"),
    )
    async with fleet(server, sqlite_url, tmp_path, *people, drivers="null") as at:
        nobody = await at.api.post("/v1/sessions", json={"profile_id": "p1"})
        assert (nobody.status_code, nobody.json()["data"]["cause"]) == (409, "sessions_not_offered")
        async with at.worker("w1", sessions=1), at.worker("w2", sessions=1):
            await at.offered(2)
            wrong = await at.api.post("/v1/sessions", json={"profile_id": "p3"})
            assert "--pool other" in wrong.json()["detail"]
            one, two = await at.open(), await at.open(profile_id=None, pool="default")
            assert {one["session"]["profile_id"], two["session"]["profile_id"]} == {"p1", "p2"}
            assert len((await at.api.get("/v1/sessions")).json()["items"]) == 2
            full = await at.api.post("/v1/sessions", json={"profile_id": "p1"})
            assert (full.status_code, full.json()["data"]["cause"]) == (409, "sessions_full")
            waiting = asyncio.create_task(at.open(wait_s=60))
            await at.release(one)
            assert (await waiting)["session"]["profile_id"] == "p1"


@pytest.mark.parametrize("nearly", [True, False])
async def test_an_order_passes_over_a_machine_whose_disk_is_full(
    server: ServerThread, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nearly: bool
) -> None:
    """The worker with most places free is asked first. Nearly full: it leases none. Full: it gives one back."""
    monkeypatch.setattr(machine, "FIRST_CHECK_SECONDS", 0.2)
    monkeypatch.setattr(machine, "MAX_CHECK_SECONDS", 1.0)
    if not nearly:
        monkeypatch.setattr(machine.Machine, "check_room", lambda _machine: None)
    people = [profile("p1", driver="null"), profile("p2", account_id="a2", driver="null")]
    with disk(tmp_path / "disk") as place:
        async with fleet(server, sqlite_url, tmp_path, *people, drivers="null") as at, AsyncExitStack() as workers:
            await workers.enter_async_context(at.worker("disk/big", worker_id="big", sessions=9))
            with full(place, 400_000 if nearly else 0, monkeypatch):
                await at.offered(1)
                refused = await at.api.post("/v1/sessions", json={"profile_id": "p1"})
                assert (refused.status_code, refused.json()["data"]["cause"]) == (409, "machine_unwell")
                assert "disk full" in refused.json()["detail"]
                assert (await at.home.lane()).state == "available"
                await workers.enter_async_context(at.worker("small", worker_id="small", sessions=1))
                await at.offered(2)
                opened = await at.open()
                assert opened["session"]["worker_id"] == "small"
                refused = await at.api.post("/v1/sessions", json={"profile_id": "p2"})
                assert refused.json()["data"]["cause"] == "sessions_full"
                waiting = asyncio.create_task(at.open(profile_id="p2", wait_s=60))
            assert (await waiting)["session"]["worker_id"] == "big"


async def test_a_caller_that_leaves_while_a_worker_waits_gets_no_session(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with fleet(server, sqlite_url, tmp_path, profile("p1", driver="null"), drivers="null") as at, at.worker():
        await at.offered()
        first = await at.open()
        with pytest.raises(httpx2.TimeoutException):
            await at.api.post("/v1/sessions", json={"profile_id": "p1", "wait_s": 500}, timeout=0.5)
        await at.release(first)
        second = await at.open(wait_s=60)
        assert second["fencing_token"] == 2
        await at.release(second)


async def test_a_token_offers_only_what_it_may(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with fleet(server, sqlite_url, tmp_path, profile("p1", driver="null"), drivers="null") as at:
        address = at.served.url.replace("http:", "ws:") + "/v1/workers/sessions"

        async def dial(*scopes: str, **limits: Any) -> tuple[int, dict[str, Any]]:
            token = await asyncio.to_thread(lambda: at.served.new_token(*scopes, **limits))
            return await refused(address, Authorization=f"Bearer {token}")

        assert (await refused(address))[0] == 401
        assert (await dial("read"))[0] == 403
        token = await asyncio.to_thread(lambda: at.served.new_token("work", pools=["other"]))
        for hello, why in (
            ("[]", "did not say"),
            ('{"version": 99}', "upgrade"),
            ('{"version": 1, "worker_id": "w", "pool": "default", "limit": 1}', "pool"),
        ):
            async with connect(address, additional_headers={"Authorization": f"Bearer {token}"}) as socket:
                await socket.send(hello)
                await asyncio.wait_for(socket.wait_closed(), PATIENCE)
                assert (socket.close_code, why in (socket.close_reason or "")) == (4400, True), socket.close_reason


async def test_a_server_that_comes_back_finds_the_sessions_that_go_on(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with fleet(server, sqlite_url, tmp_path) as at, at.worker():
        await at.offered()
        opened = await at.open()
        async with connect(opened["cdp_url"]) as client:
            await at.restart(server, sqlite_url)
            await asyncio.wait_for(client.wait_closed(), PATIENCE)
            assert client.close_code != 4410, "the session is not over"
        answer = await at.post(opened, "checkpoint", step="at once")
        assert answer.status_code in (200, 409), answer.text

        async def known() -> bool:
            return at.served.service.sessions.get(opened["session_id"]) is not None

        await until(known)
        async with connect(opened["cdp_url"]) as client:
            await client.send('{"id": 7, "method": "Browser.getVersion"}')
            assert json.loads(await asyncio.wait_for(client.recv(), PATIENCE))["id"] == 7
        assert (await at.release(opened))["profile_state"] == "available"


async def test_a_person_takes_a_browser_on_a_workers_machine(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with fleet(server, sqlite_url, tmp_path) as at, at.worker():
        await at.offered()
        session = await at.open(headless=True)
        view = session["live_view_url"].replace("http", "ws", 1) + "/socket"
        async with connect(view, additional_headers={"Cookie": f"leasekeeper_token={at.served.token}"}) as viewer:
            while not isinstance(await asyncio.wait_for(viewer.recv(), PATIENCE), bytes):
                pass  # news come before the first picture
        async with connect(session["cdp_url"]) as client:
            status, taken = await control(at, session["session_id"], "take", note="mine")
            assert (status, taken["human"], taken["note"], taken["may_hand_back"]) == (200, True, "mine", False)
            await asyncio.wait_for(client.wait_closed(), PATIENCE)
        assert (await at.api.get("/v1/runs/p1/control")).json() == taken
        late = await at.post(session, "checkpoint", step="late")
        assert (late.status_code, late.json()["data"]["reason"]) == (410, "TAKEN_OVER")
        for action, why in (("take", "taken_already"), ("hand-back", "not_resumable")):
            status, refusal = await control(at, session["session_id"], action)
            assert (status, refusal["data"]["cause"]) == (409, why)
        status, released = await control(at, taken["run_id"], "release", note="odd", profile="quarantine")
        assert (status, released["profile_state"]) == (200, "quarantined")
        runs = (await at.home.store.find(RunRecord, limit=2)).items
        assert [(run.token, run.purpose, run.stop_reason) for run in runs] == [
            (2, "manual", None), (1, "session", "TAKEN_OVER"),
        ]  # fmt: skip


async def test_a_program_asks_for_a_person_in_a_browser_on_a_workers_machine(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with fleet(server, sqlite_url, tmp_path) as at, AsyncExitStack() as running:
        await running.enter_async_context(at.worker())
        await at.offered()
        first = await at.open(headless=True)
        assert (await at.post(first, "request-human")).status_code == 400, "nothing was asked before"
        nobody = await ask(at, first, message="look", timeout_s=1, wait_s=60)
        assert (nobody["state"], nobody["asked"], await open_reviews(at)) == ("nobody_came", "look", [])

        waiting = await ask(at, first, message="solve the prompt", timeout_s=60)
        assert (waiting["state"], await open_reviews(at)) == ("waiting", ["solve the prompt"])
        shown = (await at.api.get(f"/v1/sessions/{first['session_id']}")).json()
        assert shown["asks"] == "solve the prompt"
        answering = asyncio.create_task(ask(at, first, wait_s=60))
        status, _ = await control(at, first["session_id"], "hand-back", outcome="solved", note="sms code")
        answered = await answering
        assert (status, answered["state"], answered["outcome"]) == (200, "answered", "solved")
        assert (answered["session_id"], answered["cdp_url"]) == (first["session_id"], None)

        await ask(at, first, message="sign in", timeout_s=60)
        status, taken = await control(at, first["session_id"], "take")
        assert (status, taken["human"], taken["may_hand_back"]) == (200, True, True)
        await at.restart(server, sqlite_url)

        async def known() -> bool:
            return all(at.served.service.sessions.get(each) for each in (first["session_id"], taken["run_id"]))

        await until(known)
        assert (await ask(at, first))["state"] == "waiting", "the next server finds who waits, too"
        answering = asyncio.create_task(ask(at, first, wait_s=60))
        status, _ = await control(at, first["session_id"], "hand-back", outcome="signed_in")
        back = await answering
        assert (status, back["state"], back["outcome"]) == (200, "answered", "signed_in")
        async with connect(back["cdp_url"]) as client:
            await client.send('{"id": 7, "method": "Browser.getVersion"}')
            assert json.loads(await asyncio.wait_for(client.recv(), PATIENCE))["id"] == 7
        assert (await at.post(back, "checkpoint", step="signed_in")).status_code == 200

        await ask(at, back, message="look again", timeout_s=60)
        status, taken = await control(at, back["session_id"], "take")
        assert (status, taken["human"]) == (200, True)
        status, released = await control(at, taken["run_id"], "release", note="no")
        assert (status, released["profile_state"]) == (200, "available")
        over = await ask(at, back, wait_s=60)
        assert (over["state"], await open_reviews(at)) == ("over", [])
        assert "did not hand it back" in over["next"]
        runs = (await at.home.store.find(RunRecord, limit=4)).items
        assert [run.purpose for run in runs] == ["manual", "session", "manual", "session"]
        assert [run.token for run in runs] == [4, 3, 2, 1]
        await running.aclose()
        await at.offered(0)
        assert (await at.post(back, "request-human")).status_code == 410, "nobody is left who knows the answer"


class Wires:
    """Two ends of a connection in memory. `delay` holds back what one side sends."""

    def __init__(self) -> None:
        self.up: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.down: asyncio.Queue[bytes | None] = asyncio.Queue()


async def test_a_stream_that_is_not_read_slows_no_other(sqlite_url: str) -> None:
    wires = Wires()
    served: dict[str, Any] = {}

    async def perform(call: Any) -> None:
        stream = served[call.arguments["as"]] = await call.accept()
        while (message := await stream.receive()) is not None:
            await stream.send(message)

    server = Link(wires.down.put)
    worker = Link(wires.up.put, perform=perform)
    reading = [asyncio.ensure_future(server.run(wires.up.get)), asyncio.ensure_future(worker.run(wires.down.get))]
    slow, quick = await server.open("client", {"as": "slow"}), await server.open("client", {"as": "quick"})
    big = bytes(range(256)) * 256 * 48  # 3 MiB: several windows
    stuck = asyncio.ensure_future(slow.send(big))
    flooded = asyncio.ensure_future(served["slow"].send(big))
    for number in range(200):
        await quick.send(b"%d" % number)
        assert await quick.receive() == b"%d" % number
    assert not flooded.done(), "nobody reads it, and it waits with what fits into its window"
    assert slow._waiting_bytes <= WINDOW_BYTES + 2 * PIECE_BYTES
    found = [await slow.receive(), await slow.receive()]
    await asyncio.gather(stuck, flooded)
    assert [len(each or b"") for each in found] == [len(big)] * 2
    await wires.up.put(bytes([Kind.PIECE]))
    assert await reading[0] == "a frame is too short"
    assert await quick.receive() is None
    await wires.down.put(None)
    await reading[1]
