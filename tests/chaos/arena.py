"""The arena: client processes on one store, and the hand that kills, stops and replaces them.

Only processes that were started here are ever signalled. When it is over, the clients' logs and the store's contents
are plain data for the checker.
"""

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from leasekeeper.core.events import Event
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.jobs import Job, JobSpec
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import Lane
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Page, Store
from leasekeeper.stores import migrate, open_store
from tests.chaos.checker import Call, Contents, Rules, check, read_log
from tests.chaos.client import POLICY, STOPS_AFTER_SECONDS, TTL_SECONDS, Orders, boot_time

ROOT = Path(__file__).resolve().parents[2]
# How long the work may take, on a machine that is busy with other things too: beyond that it hangs.
DRAIN_SECONDS = 240.0
START_SECONDS = 120.0
STOP_SECONDS = 60.0
OPEN_STATES = ("scheduled", "queued", "blocked", "running")


class Arena:
    """`with Arena(...) as arena`: clients are started, tormented and ended inside."""

    program = "tests.chaos.client"

    def __init__(self, url: str, directory: Path, seed: int, *, client_url: str | None = None) -> None:
        self.url, self.client_url = url, client_url or url
        self.directory = directory
        self.random = random.Random(seed)
        self.clients: dict[str, tuple[Orders, subprocess.Popen[bytes]]] = {}
        self.stopped: dict[str, float] = {}
        self.started = 0
        self.counts: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, process in self.clients.values():
            process.kill()
        for _, process in self.clients.values():
            process.wait()

    # Clients

    def start(self, role: str, **more: Any) -> str:
        """Start a client under a fresh name."""
        self.started += 1
        who = f"{role}-{self.started}"
        orders = Orders(
            who=who,
            role=role,
            url=self.client_url,
            log=str(self.directory / f"{who}.jsonl"),
            seed=self.random.randrange(2**32),
            **more,
        )
        self._spawn(orders)
        return who

    def _spawn(self, orders: Orders) -> None:
        with (self.directory / f"{orders.who}.err").open("wb") as errors:
            process = subprocess.Popen([sys.executable, "-m", self.program, orders.dump()], cwd=ROOT, stderr=errors)
        self.clients[orders.who] = (orders, process)

    def kill_one(self) -> None:
        """A worker dies in the middle of whatever it does; a new process takes its place."""
        self.replace(self.random.choice(self._running()))

    def replace(self, who: str) -> None:
        """Kill one client; a new process with the same orders takes its place."""
        orders, process = self.clients.pop(who)
        process.kill()
        process.wait()
        self.counts["killed"] += 1
        self.start(orders.role, pools=orders.pools, tasks=orders.tasks, specs=orders.specs)

    def stop_one(self) -> None:
        """A worker stands still for longer than its leases last, and then goes on as if nothing had been."""
        who = self.random.choice(self._running())
        self.clients[who][1].send_signal(signal.SIGSTOP)
        self.stopped[who] = boot_time() + TTL_SECONDS * self.random.uniform(1.1, 1.5)
        self.counts["stopped"] += 1

    def wake_those_who_slept(self, *, all_of_them: bool = False) -> None:
        for who, until in list(self.stopped.items()):
            if all_of_them or boot_time() >= until:
                del self.stopped[who]
                self.clients[who][1].send_signal(signal.SIGCONT)

    def _running(self) -> list[str]:
        """Workers that are not stopped; there is always one, as they sleep for a few faults only."""
        return [who for who, (orders, _) in self.clients.items() if orders.role == "worker" and who not in self.stopped]

    def wait_for_everybody(self, *, to_call: bool = True) -> None:
        """Return when each client is there (from then on it can be asked to stop), and has made its first call."""
        until = time.monotonic() + START_SECONDS
        logs = [self.directory / f"{who}.jsonl" for who in self.clients]
        while not all(log.exists() and (not to_call or log.stat().st_size) for log in logs):
            self.check_clients()
            assert time.monotonic() < until, "some clients do nothing"
            time.sleep(0.02)  # waits: a starting process tells nobody that it is ready

    def torment(self, faults: int, *extra: Callable[[], None]) -> None:
        """Kill, stop and wake at random, so many times; `extra` are other things that may happen."""
        for _ in range(faults):
            time.sleep(self.random.uniform(0.1, 0.5))  # waits: faults come at random moments
            self.wake_those_who_slept()
            self.random.choice([self.kill_one, self.stop_one, *extra])()
        self.wake_those_who_slept(all_of_them=True)

    def end(self) -> None:
        """Ask everybody to finish what they hold, and see that they do. Who has just begun cannot listen yet: wait."""
        self.wake_those_who_slept(all_of_them=True)
        self.wait_for_everybody(to_call=False)
        for _, process in self.clients.values():
            process.send_signal(signal.SIGTERM)
        for who, (_, process) in self.clients.items():
            code = process.wait(STOP_SECONDS)
            errors = (self.directory / f"{who}.err").read_text()
            assert (code, errors) == (0, ""), f"{who} ended with {code}:\n{errors}"
        self.clients.clear()

    async def drain(self, least: int = 0) -> None:
        """Wait until no job is on its way any more: each of at least so many is finished, or waits for a person."""
        until = time.monotonic() + DRAIN_SECONDS
        store = await open_store(self.url, policy=POLICY)
        try:
            while True:
                stats = await store.stats()
                waiting = sum(stats.jobs.get(state, 0) for state in OPEN_STATES)
                if not waiting and sum(stats.jobs.values()) >= least:
                    return
                self.check_clients()
                assert time.monotonic() < until, f"after {DRAIN_SECONDS} s the work is not done: {stats}"
                await asyncio.sleep(0.1)  # waits: nobody tells when the last job is done
        finally:
            await store.close()

    def check_clients(self) -> None:
        """Nobody has failed so far."""
        for who, (_, process) in self.clients.items():
            if process.poll():
                errors = (self.directory / f"{who}.err").read_text()
                raise AssertionError(f"{who} ended with {process.returncode}:\n{errors}")

    # Results

    def history(self) -> list[Call]:
        calls = []
        for log in sorted(self.directory.glob("*.jsonl")):
            calls += read_log(log.read_text(errors="replace").splitlines())
        return calls

    def verdict(self, contents: Contents, limits: Mapping[str, int]) -> list[str]:
        return check(self.history(), contents, Rules(stops_after=STOPS_AFTER_SECONDS, limits=limits))


async def prepare(url: str, fleet: Fleet, specs: Sequence[JobSpec] = ()) -> None:
    """An empty store with a fleet, and perhaps with jobs."""
    await migrate(url)
    store = await open_store(url, policy=POLICY)
    try:
        await store.apply(fleet, actor="test")
        if specs:
            await store.submit(specs)
    finally:
        await store.close()


async def contents_of(url: str) -> Contents:
    """All that the store holds when everybody has ended."""
    store = await open_store(url, policy=POLICY)
    try:
        leases = await everything(store, Lease)
        lanes = await everything(store, Lane)
        contents = await contents_in(store)
    finally:
        await store.close()
    held = [lease.lease_id for lease in leases if lease.ended_at is None]
    assert held == [], "leases are live though everybody has ended"
    assert {lane.profile_id: lane.token for lane in lanes} == {
        lane.profile_id: max((lease.token for lease in leases if lease.profile_id == lane.profile_id), default=0)
        for lane in lanes
    }
    return contents


async def contents_in(store: Store) -> Contents:
    """All that the store holds, as plain values, read through its port."""
    jobs = await everything(store, Job)
    events = await everything(store, Event)
    leases = await everything(store, Lease)
    return Contents(
        jobs=tuple(
            {
                "job": job.job_id,
                "state": str(job.state),
                "attempt": job.attempt,
                "max_attempts": job.max_attempts,
                "key": job.idempotency_key,
                "mark": job.notes or None,
            }
            for job in jobs
        ),
        leases=tuple(
            {"profile": lease.profile_id, "token": lease.token, "who": lease.incarnation, "status": str(lease.status)}
            for lease in leases
        ),
        endings=tuple(endings(reversed(events))),
    )


def endings(events: Iterable[Event]) -> Iterator[tuple[str, str]]:
    """Each time a job's state changed in the log of events, and to what."""
    states: dict[str, str] = {}
    for event in events:
        if event.job_id is not None and event.job_state is not None and states.get(event.job_id) != event.job_state:
            states[event.job_id] = str(event.job_state)
            yield event.job_id, str(event.job_state)


async def everything(store: Store, kind: type[Any]) -> list[Any]:
    """All records of a kind, page by page."""
    found: list[Any] = []
    page: Page[Any] | None = None
    while page is None or page.after is not None:
        page = await store.find(kind, after=page.after if page else None, limit=MAX_IN_PAGE)
        found += page.items
    return found
