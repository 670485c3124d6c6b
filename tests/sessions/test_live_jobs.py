"""Jobs whose browsers are on the machines of workers: shown, taken, handed back and released at their server.

The worker's half runs in this process, the server's in its thread, which finds no browser in its own process;
`test_live_job_faults` has both as processes.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from leasekeeper import config as settings
from leasekeeper.core.decisions import Review
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.runtime.control_transfer import seen_evidence
from leasekeeper.runtime.session_offer import browsers_offered
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.worker import Worker, WorkerOptions
from leasekeeper.service.pages.signing_in import COOKIE
from leasekeeper.stores import open_store
from tests.conformance.world import profile
from tests.runtime.stage import PATIENCE, until
from tests.serving import ServerThread
from tests.sessions.live_tasks import app, let_go
from tests.sessions.test_fleet import Fleet, fleet
from tests.sessions.test_sessions import refused
from tests.sessions.test_taking_sessions import control


@pytest.fixture(autouse=True)
def _nothing_in_the_servers_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("live_run", "live_run_of"):
        monkeypatch.setattr(f"leasekeeper.service.control.{name}", lambda _: None)


@asynccontextmanager
async def staged(server: ServerThread, url: str, folder: Path, **more: Any) -> AsyncIterator[Fleet]:
    """A server, and the profile `p1` without a browser."""
    async with fleet(server, url, folder, profile("p1", driver="null"), drivers="null", **more) as at:
        yield at


@asynccontextmanager
async def working(at: Fleet, *scopes: str) -> AsyncIterator[None]:
    """A worker of jobs on another machine, connected to the server, while the block lasts."""
    token = await asyncio.to_thread(at.served.new_token, *(scopes or ("read", "work")), name="worker")
    given: dict[str, Any] = {"store": at.served.url, "token": token, "data_dir": str(at.folder / "w1")}
    loaded = settings.load({}, **given, drivers="null", poll_every=0.1, renew_every=0.3)
    opening = partial(open_store, loaded.store, policy=loaded.policy, token=token)
    store, stop = await opening(), Shutdown(loaded.browsers.stop_grace)
    worker = Worker(app, store, loaded, WorkerOptions(), open_store=opening, stop=stop)
    async with browsers_offered(store, loaded, sessions=0, pool="default"):
        running = asyncio.create_task(worker.run())
        try:
            yield
        finally:
            stop.ask()
            await running
            await store.close()


async def asking(at: Fleet, *, may_take: bool = True) -> dict[str, Any]:
    """What the server says of the browser of `p1`, once its task asks for a person, and it has heard of the browser."""

    async def look() -> dict[str, Any] | None:
        answer = await at.api.get("/v1/runs/p1/control")
        found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return found if found.get("asks") and found["may_take"] == may_take else None

    found = await until(look)
    assert found is not None
    return found


async def output_of(at: Fleet, job: Job) -> dict[str, Any]:
    (done,) = await at.home.settled(job)
    assert done.state == "completed", done
    output: Any = (await at.home.run_of(job)).output
    return dict(output)


async def test_a_person_answers_and_takes_a_job_on_a_workers_machine(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with staged(server, sqlite_url, tmp_path) as at, working(at):
        job = await at.home.submit("ask")
        seen = await asking(at)
        assert (seen["human"], seen["asks"], seen["may_hand_back"]) == (False, "solve the prompt", True)
        status, _ = await control(at, "p1", "hand-back", outcome="solved", note="a picture")
        assert (status, (await output_of(at, job))["said"]) == (200, ["tests", "solved", "a picture"])
        status, late = await control(at, seen["run_id"], "hand-back", outcome="again")
        assert status in (409, 410), f"the run ends, or has ended: {late}"

        job = await at.home.submit("ask")
        first = await asking(at)
        status, taken = await control(at, first["run_id"], "take", note="looks odd")
        assert (status, taken["human"], taken["note"], taken["may_hand_back"]) == (200, True, "looks odd", True)
        assert taken["fencing_token"] == first["fencing_token"] + 1
        assert (await at.api.get(f"/v1/runs/{first['run_id']}/control")).json() == taken, "by any of its runs"
        status, second = await control(at, "p1", "take")
        assert (status, second["data"]["cause"]) == (409, "taken_already")
        status, back = await control(at, taken["run_id"], "hand-back", outcome="solved")
        assert (status, back["human"], back["fencing_token"]) == (200, False, first["fencing_token"] + 2)
        done = await output_of(at, job)
        assert (done["said"][:2], done["tokens"][1] - done["tokens"][0]) == (["tests", "solved"], 2)

        job = await at.home.submit("ask")
        await asking(at)
        status, taken = await control(at, "p1", "take")
        status, released = await control(at, taken["run_id"], "release", note="no", job="cancel")
        assert (status, released["profile_state"]) == (200, "available")
        (done_job,) = await at.home.settled(job)
        assert (done_job.state, (await at.home.store.find(Review, {"open": "1"})).items) == ("cancelled", [])
        holders = [run.worker_id for run in (await at.home.store.find(RunRecord, limit=2)).items]
        assert holders[0] == "human:tests"


async def test_whoever_may_only_read_sees_it_and_takes_nothing(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with staged(server, sqlite_url, tmp_path) as at, working(at):
        job = await at.home.submit("ask")
        await asking(at)
        reader = await asyncio.to_thread(at.served.new_token, "read")
        headers = {"Authorization": f"Bearer {reader}"}
        assert (await at.api.get("/v1/runs/p1/control", headers=headers)).json()["asks"] == "solve the prompt"
        for action in ("take", "hand-back", "release"):
            answer = await at.api.post(f"/v1/runs/p1/{action}", json={}, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "SCOPE_MISSING")
        await control(at, "p1", "hand-back")
        await output_of(at, job)


async def test_a_server_that_comes_back_finds_who_has_control(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with staged(server, sqlite_url, tmp_path) as at, working(at):
        job = await at.home.submit("ask")
        first = await asking(at)
        _, taken = await control(at, "p1", "take")
        await at.restart(server, sqlite_url)

        async def known() -> Any:
            answer = await at.api.get(f"/v1/runs/{first['run_id']}/control")
            return answer.json() if answer.status_code == 200 else None

        found = await until(known)
        assert (found["human"], found["run_id"], found["may_hand_back"]) == (True, taken["run_id"], True)
        status, _ = await control(at, first["run_id"], "hand-back", outcome="solved")
        assert (status, (await output_of(at, job))["said"][1]) == (200, "solved")


async def test_a_connection_that_is_cut_during_a_take_takes_all_the_same(
    server: ServerThread, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, cut, collect = asyncio.Event(), asyncio.Event(), seen_evidence

    async def slow(*arguments: Any) -> Any:
        begun.set()
        await cut.wait()
        return await collect(*arguments)

    monkeypatch.setattr("leasekeeper.runtime.person_control.seen_evidence", slow)
    async with staged(server, sqlite_url, tmp_path) as at, working(at):
        job = await at.home.submit("ask")
        await asking(at)
        taking = asyncio.create_task(control(at, "p1", "take"))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        (place,) = at.served.service.sessions.places
        await asyncio.to_thread(at.served.run, place.offering.close())
        status, lost = await taking
        assert (status, lost["data"]["cause"]) == (409, "worker_away")
        cut.set()

        async def taken() -> bool:
            answer = await at.api.get("/v1/runs/p1/control")
            return answer.status_code == 200 and bool(answer.json()["human"])

        await until(taken)
        status, _ = await control(at, "p1", "hand-back", outcome="solved")
        assert (status, (await output_of(at, job))["tokens"]) == (200, [1, 3])


async def test_a_worker_speaks_of_its_own_leases_only(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with staged(server, sqlite_url, tmp_path) as at, working(at):
        job = await at.home.submit("ask")
        seen = await asking(at)
        token = await asyncio.to_thread(at.served.new_token, "work", name="other")
        address = at.served.url.replace("http:", "ws:") + "/v1/workers/sessions"
        own = await at.home.store.get(Lease, seen["lease_id"])
        async with connect(address, additional_headers={"Authorization": f"Bearer {token}"}) as socket:
            hello = {"version": 1, "worker_id": "w", "pool": "default", "machine": None, "limit": 0}
            await socket.send(json.dumps(hello))
            news = {"key": own.run_id, "leases": [own.lease_id], "person": {"name": "mallory"}, "over": False}
            await socket.send(b"\x05\0\0\0\0" + json.dumps({"live": news}).encode())
            await at.offered(2)
            other = at.served.service.sessions.places[1]
            await asyncio.to_thread(at.served.run, other.offering._lives.all_processed())  # type: ignore[attr-defined]  # it is a worker's
            assert (other.lives, (await at.api.get("/v1/runs/p1/control")).json()) == ({}, seen)
        await control(at, "p1", "hand-back")
        await output_of(at, job)
        assert (await refused(address, Authorization="Bearer none"))[0] == 401


async def test_a_wrong_name_is_told_what_it_stands_for(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with staged(server, sqlite_url, tmp_path) as at:

        async def taken(named: str) -> tuple[int, str]:
            status, refusal = await control(at, named, "take")
            return status, refusal["detail"]

        assert await taken("p1") == (404, "no browser is open in profile p1: nobody has it")
        assert await taken("shop") == (404, "shop is an account: name one of its profiles (p1), or a run")
        assert await taken("px") == (404, "there is no run, profile or job px")
        job = await at.home.submit("ask")
        assert await taken(job.job_id) == (404, f"job {job.job_id} is blocked and has no browser")
        async with working(at):
            seen = await asking(at)
            (place,) = at.served.service.sessions.places
            held, place.lives = place.lives, {}
            status, why = await taken(job.job_id)
            assert (status, "which is not connected to this server: start it with --store" in why) == (409, True)
            assert why == (await taken("p1"))[1] == (await taken(seen["run_id"]))[1]
            place.lives = held
            status, taken_by_job = await control(at, job.job_id, "take")
            assert (status, taken_by_job["human"]) == (200, True)
            await control(at, "p1", "hand-back")
            await output_of(at, job)
        await at.offered(0)
        status, why = await taken(seen["run_id"])
        assert (status, "is over (TAKEN_OVER: taken over by tests)" in why) == (410, True)


async def test_a_task_of_a_worker_at_the_database_is_answered_but_not_taken(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with staged(server, sqlite_url, tmp_path, renew_every=0.3) as at:
        at.home.app = app
        async with at.home.worker():
            job = await at.home.submit("ask")
            seen = await asking(at, may_take=False)
            assert (seen["human"], seen["asks"]) == (False, "solve the prompt")
            pages = [f"/ui/runs/{seen['run_id']}", "/ui/reviews"]
            signed_in = {"Cookie": f"{COOKIE}={at.served.token}"}
            run, inbox = [(await at.api.get(page, headers=signed_in)).text for page in pages]
            assert "Answer only" in run
            assert "Take control" not in run
            assert "Answer the task" in inbox
            status, refusal = await control(at, "p1", "take")
            assert (status, refusal["data"]["cause"]) == (409, "worker_away")
            assert "start it with --store" in refusal["detail"]
            assert "answer it by hand-back, without taking it" in refusal["detail"]
            status, answered = await control(at, "p1", "hand-back", outcome="solved", note="a picture")
            assert (status, answered["asks"]) == (200, None)
            status, second = await control(at, seen["run_id"], "hand-back", outcome="other")
            assert status in (409, 410), f"the run goes on, or has ended: {second}"
            assert (await output_of(at, job))["said"] == ["tests", "solved", "a picture"]
            late = await at.home.submit("ask", payload={"timeout": 0.01})
            (done,) = await at.home.settled(late)
            assert (done.state, done.stop_reason) == ("review", "HUMAN_REVIEW_REQUIRED")


async def test_a_task_that_has_not_stopped_yet_gets_nothing_back(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    async with staged(server, sqlite_url, tmp_path) as at, working(at):
        let_go.clear()
        job = await at.home.submit("stubborn")

        async def taken() -> bool:
            return (await control(at, "p1", "take"))[0] == 200

        await until(taken)
        status, refusal = await control(at, "p1", "hand-back")
        assert (status, refusal["data"]["cause"]) == (409, "not_resumable")
        assert "has not stopped yet" in refusal["detail"]
        let_go.set()

        async def handed_back() -> bool:
            return (await control(at, "p1", "hand-back"))[0] == 200

        await until(handed_back)
        assert await output_of(at, job) == {"token": 3}
        assert (await at.home.lane()).state == "available"
