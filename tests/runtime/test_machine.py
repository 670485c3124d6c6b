"""A machine that cannot run jobs: they are given back uncounted, and the worker claims none until it is well."""

import errno
import logging
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasekeeper import App, Run
from leasekeeper.browsers.finding import find_browser
from leasekeeper.client import Client
from leasekeeper.core.jobs import Job, JobState, RunMode
from leasekeeper.core.leases import Lease, RunRecord, RunResult
from leasekeeper.core.machine import Trouble
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.why import explain
from leasekeeper.core.workers import Worker
from leasekeeper.errors import Conflict
from leasekeeper.ports import Grant
from leasekeeper.runtime import machine
from leasekeeper.runtime.heartbeat import Heartbeat
from leasekeeper.runtime.manual_run import run_manually
from leasekeeper.runtime.profile_transfer import Transfer
from leasekeeper.runtime.shutdown import Shutdown
from tests.conformance.world import profile
from tests.runtime.browsing import House, house
from tests.runtime.stage import until

SIZE = 96 * 1024 * 1024


def new_app() -> App:
    app = App()

    @app.task("visit")
    async def visit(run: Run) -> dict[str, str]:
        return {"title": await run.page.title()}

    return app


@contextmanager
def disk(place: Path) -> Iterator[Path]:
    """A file system of its own, small enough to fill; where none can be mounted, the folder itself."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield place
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextmanager
def full(place: Path, room: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While inside, so many bytes are free on the disk."""
    if not place.is_mount():
        with monkeypatch.context() as patch:
            patch.setattr(Path, "mkdir", refuse)
            patch.setattr(machine, "_write", refuse)
            patch.setattr(machine, "MIN_FREE_BYTES", 2**62)
            yield
        return
    filler = place / "filler"
    with filler.open("wb") as file:
        found = os.statvfs(place)
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - room)
    yield
    filler.unlink()


def refuse(path: Path, *_more: object, **_named: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


async def workers(home: House) -> list[Worker]:
    return list((await home.store.find(Worker)).items)


async def unwell(home: House) -> Worker:
    async def look() -> Worker | None:
        return next((each for each in await workers(home) if each.unwell_reason is not None), None)

    found = await until(look)
    assert found is not None
    return found


async def all_in(home: House, jobs: list[Job], state: JobState) -> bool:
    return all([(await home.store.get(Job, job.job_id)).state is state for job in jobs])


@pytest.mark.parametrize("nearly", [True, False])
async def test_a_full_disk_costs_no_job_an_attempt(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, nearly: bool
) -> None:
    """Nearly full: nothing is claimed. Full while something is claimed: it is given back."""
    caplog.set_level(logging.INFO, "leasekeeper")
    monkeypatch.setattr(machine, "FIRST_CHECK_SECONDS", 0.2)
    if not nearly:
        monkeypatch.setattr(machine.Machine, "check_room", lambda _machine: None)
    profiles = [profile(f"p{n}") for n in range(3)]
    with disk(tmp_path / "disk") as place:
        async with house(new_app(), sqlite_url, place, *profiles) as home, home.worker(concurrency=2):
            await home.settled(await home.submit("visit", "p0"))
            with full(place, 400_000 if nearly else 0, monkeypatch):
                jobs = [await home.submit("visit", f"p{n % 3}") for n in range(6)]
                worker = await unwell(home)
                assert str(worker.unwell_reason).startswith(f"disk full at {place}")
                assert worker.unwell_since is not None
                why = explain(await home.store.why(job_id=jobs[-1].job_id))
                assert [each.worker_id for each in why.unwell] == [worker.worker_id]
                await until_checked(caplog, 3)
            await until(lambda: all_in(home, jobs, JobState.COMPLETED))
            assert [each.unwell_reason for each in await workers(home)] == [None]
            runs = (await home.store.find(RunRecord, limit=100)).items
            given_back = set() if nearly else {(RunResult.BLOCKED, "MACHINE_UNWELL")}
            assert {(run.result, run.stop_reason) for run in runs} == {(RunResult.COMPLETED, None), *given_back}
            types = [event.type.value for event in await home.events()]
            assert types.index("worker_unwell") < types.index("worker_well")
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(f"disk full at {place}" in line and "MB free" in line for line in said)
    assert any("well again" in record.getMessage() for record in caplog.records)


async def until_checked(caplog: pytest.LogCaptureFixture, times: int) -> None:
    async def checked() -> bool:
        return sum("still unwell" in record.getMessage() for record in caplog.records) >= times

    await until(checked)


async def test_a_browser_that_was_removed_costs_no_job_an_attempt(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "FIRST_CHECK_SECONDS", 0.2)
    browser = tmp_path / "chromium"
    browser.symlink_to(find_browser(os.environ.get("LEASEKEEPER_BROWSER")).path)
    async with house(new_app(), store_url, tmp_path, browser=str(browser)) as home, home.worker():
        first = await home.submit("visit")
        await home.settled(first)
        aside = browser.rename(tmp_path / "elsewhere")
        job = await home.submit("visit")
        worker = await unwell(home)
        assert str(worker.unwell_reason).startswith(f"no browser at {browser}")
        found = await home.store.get(Job, job.job_id)
        assert (found.attempt, found.blocked_reason) == (0, Blocked.NO_WORKER)
        aside.rename(browser)
        (done,) = await home.settled(job)
        assert done.state is JobState.COMPLETED


@pytest.mark.parametrize("name", ["runs", "profiles", "open"])
async def test_a_folder_of_the_worker_that_cannot_be_used_costs_no_job_an_attempt(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A file in its place is refused to every user alike."""
    monkeypatch.setattr(machine, "FIRST_CHECK_SECONDS", 0.2)
    async with house(new_app(), sqlite_url, tmp_path, profile("p1"), profile("p2")) as home, home.worker():
        await home.settled(await home.submit("visit"))
        folder = home.data / name
        aside = folder.rename(tmp_path / "aside")
        folder.touch()
        job = await home.submit("visit", "p2")
        why = str((await unwell(home)).unwell_reason)
        assert why.startswith(f"data directory cannot be used: {folder}")
        assert "may write to it" in why
        found = await home.store.get(Job, job.job_id)
        assert (found.attempt, found.blocked_reason) == (0, Blocked.NO_WORKER)
        folder.unlink()
        aside.rename(folder)
        (done,) = await home.settled(job)
        assert (done.state, done.attempt) == (JobState.COMPLETED, 1)
        assert (await home.lane("p2")).state == "available"


async def test_a_data_directory_that_is_gone_is_made_again_once_it_can_be(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.touch()
    here = machine.Machine(data, lambda: None, None)
    found = await here.blame_for_opening(OSError("the browser could not be started"))
    assert found is not None
    assert found.trouble is Trouble.DATA_DIR_UNUSABLE
    await here.check()
    assert here.unwell is not None
    data.unlink()
    await here.check()
    assert here.unwell is None
    assert (data / "bin").is_dir()


async def test_a_directory_of_one_profile_that_cannot_be_used_is_not_the_machines(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with house(new_app(), sqlite_url, tmp_path, profile("p1"), profile("p2")) as home, home.worker():
        home.profiles.mkdir(parents=True, exist_ok=True)
        (home.profiles / "p1").touch()
        failed, done = await home.settled(await home.submit("visit"), await home.submit("visit", "p2"))
        assert (failed.attempt, done.state) == (1, JobState.COMPLETED)
        assert [each.unwell_reason for each in await workers(home)] == [None]


KEEPER, HEARTBEAT = "leasekeeper-keeper-socket", "leasekeeper-heartbeat"


def refuse_threads(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> None:
    """So many times no thread with this name can be started."""
    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name == name and len(refused) < times:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)


async def test_too_many_processes_cost_no_job_an_attempt(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(machine, "FIRST_CHECK_SECONDS", 0.2)
    refuse_threads(monkeypatch, KEEPER, 1)
    async with house(new_app(), sqlite_url, tmp_path) as home, home.worker():
        (done,) = await home.settled(await home.submit("visit"))
        assert (done.state, done.attempt) == (JobState.COMPLETED, 1)
        runs = (await home.store.find(RunRecord)).items
        assert [run.stop_reason for run in runs] == [None, "MACHINE_UNWELL"]
        assert (await home.lane()).state == "available"
        assert "worker_unwell" in [event.type.value for event in await home.events()]
    assert any("is unwell: too many processes" in record.getMessage() for record in caplog.records)


async def test_a_worker_that_cannot_start_its_heartbeat_thread_claims_no_job(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody would renew the lease of the job: it would expire, and its profile need a decision."""
    monkeypatch.setattr(machine, "FIRST_CHECK_SECONDS", 0.2)
    refuse_threads(monkeypatch, HEARTBEAT, 1)
    async with house(new_app(), sqlite_url, tmp_path) as home, home.worker():
        (done,) = await home.settled(await home.submit("visit"))
        assert (done.state, done.attempt) == (JobState.COMPLETED, 1)
        assert [run.stop_reason for run in (await home.store.find(RunRecord)).items] == [None]
        assert (await home.lane()).state == "available"
    assert any("is unwell: too many processes" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("how", ["client.lease", "transfer"])
async def test_no_profile_is_leased_if_the_heartbeat_thread_cannot_be_started(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    refuse_threads(monkeypatch, HEARTBEAT, 1)
    use = lease_with_client if how == "client.lease" else trim
    async with house(new_app(), sqlite_url, tmp_path) as home:
        with pytest.raises(RuntimeError, match="new thread"):
            await use(home)
        assert (await home.lane()).state == "available"
        assert not (await home.store.find(Lease)).items
        await use(home)


@pytest.mark.parametrize("thread", [KEEPER, HEARTBEAT])
@pytest.mark.parametrize("how", ["client.browser", "open"])
async def test_too_many_processes_cost_nobody_a_profile(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, thread: str
) -> None:
    refuse_threads(monkeypatch, thread, 1)
    open_one = open_with_client if how == "client.browser" else open_by_hand
    async with house(new_app(), sqlite_url, tmp_path) as home:
        with pytest.raises(Conflict, match="too many processes") as seen:
            await open_one(home)
        assert seen.value.cause == "machine_unwell"
        assert (await home.lane()).state == "available"
        await open_one(home)


@pytest.mark.parametrize("nearly", [True, False])
@pytest.mark.parametrize("how", ["client.browser", "open"])
async def test_a_full_disk_costs_nobody_a_profile(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, nearly: bool
) -> None:
    """Nearly full: no profile is leased. Full once it is leased: it is given back as it was."""
    if not nearly:
        monkeypatch.setattr(machine.Machine, "check_room", lambda _machine: None)
    open_one = open_with_client if how == "client.browser" else open_by_hand
    with disk(tmp_path / "disk") as place:
        async with house(new_app(), sqlite_url, place) as home:
            await open_one(home)
            with full(place, 400_000 if nearly else 0, monkeypatch), pytest.raises(Conflict, match="disk full") as seen:
                await open_one(home)
            assert seen.value.cause == "machine_unwell"
            assert (await home.lane()).state == "available"
            await open_one(home)
            runs = [(run.result, run.stop_reason) for run in (await home.store.find(RunRecord)).items]
            given_back = [] if nearly else [(RunResult.BLOCKED, "MACHINE_UNWELL")]
            assert runs == [(RunResult.COMPLETED, None), *given_back, (RunResult.COMPLETED, None)]


@pytest.mark.parametrize("how", ["client.browser", "open"])
async def test_a_settled_run_whose_ledger_cannot_be_written_ends_without_an_error(
    sqlite_url: str, tmp_path: Path, how: str
) -> None:
    open_one = open_with_client if how == "client.browser" else open_by_hand
    async with house(new_app(), sqlite_url, tmp_path) as home:

        def break_ledger() -> None:
            (home.data / "open").rename(tmp_path / "aside")
            (home.data / "open").touch()

        await open_one(home, break_ledger)
        assert (await home.lane()).state == "available"
        assert [run.result for run in (await home.store.find(RunRecord)).items] == [RunResult.COMPLETED]


def nothing() -> None: ...


async def open_with_client(home: House, while_open: Callable[[], None] = nothing) -> None:
    client = Client(await home.open_store(), home.config)
    try:
        async with client.browser("p1"):
            while_open()
    finally:
        await client.close()


async def lease_with_client(home: House) -> None:
    client = Client(await home.open_store(), home.config)
    try:
        async with client.lease("p1"):
            pass
    finally:
        await client.close()


async def trim(home: House) -> None:
    heartbeat = Heartbeat(home.open_store, home.config.policy.timing)
    try:
        await Transfer(store=home.store, config=home.config, heartbeat=heartbeat, who="ann", actor="ann").trim(
            "p1", counting=lambda _total: lambda _size: None
        )
    finally:
        heartbeat.close()


async def open_by_hand(home: House, while_open: Callable[[], None] = nothing) -> None:
    """Whoever opens the profile closes it at once."""

    def opened(_grant: Grant, _mode: RunMode) -> None:
        while_open()
        stop.ask()

    heartbeat, stop = Heartbeat(home.open_store, home.config.policy.timing), Shutdown(home.config.browsers.stop_grace)
    try:
        await run_manually(
            home.store,
            home.config,
            "p1",
            who="ann",
            heartbeat=heartbeat,
            stop=stop,
            opened_as=opened,
        )
    finally:
        stop.done()
        heartbeat.close()
