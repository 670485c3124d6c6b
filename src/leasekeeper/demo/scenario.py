"""The scenario of the demo: the shop opens, workers start, jobs are submitted, and failures happen at set events.

Each step starts at an event of the store, never after a guessed time. An `Audience` displays it.
"""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import Final, Protocol

from leasekeeper import config as settings
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job, JobSpec
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.profiles import Lane
from leasekeeper.demo.folder import Place
from leasekeeper.demo.jobs import (
    AGAIN,
    BUSY,
    DOUBTED,
    FIRST,
    KILLED,
    LAPTOP,
    LOGGED_OUT,
    PAUSED,
    PAUSED_ACCOUNT,
    WHILE_TAKEN,
    for_shop,
)
from leasekeeper.demo.narration import Line, line_of
from leasekeeper.demo.shop import Arrival, Shop, late
from leasekeeper.demo.workers import WorkerProcesses, wait_until_gone
from leasekeeper.errors import DemoFailed
from leasekeeper.ports import Stats, Store
from leasekeeper.runtime.lost_runs import LostRunReports
from leasekeeper.runtime.sweeper import Sweeper
from leasekeeper.stores import open_store
from leasekeeper.wire import load_fleet

MAX_SECONDS: Final = 600.0
IDLE_POLLS: Final = 4
POLL_SECONDS: Final = 0.25
EVENT_SECONDS: Final = 0.1
ALL: Final = 1_000
# A job that is blocked for one of these reasons goes on by itself, so the demo waits for it.
_MOVING: Final = ("blocked_by_profile_lease", "blocked_by_capacity", "blocked_by_no_worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The fleet at one moment."""

    now: datetime
    began_at: datetime
    stats: Stats
    lanes: Sequence[Lane]
    leases: Mapping[str, Sequence[Lease]]
    tasks: Mapping[str, str]
    requests: int
    clicks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of the demo. `runs`: oldest first. `left`: processes that should be gone."""

    now: datetime
    began_at: datetime
    jobs: Sequence[Job]
    lanes: Sequence[Lane]
    runs: Sequence[RunRecord]
    arrivals: Sequence[Arrival]
    late: Sequence[Arrival]
    left: Sequence[int]


class Audience(Protocol):
    """Displays the demo. `live`: it wants the state of the fleet a few times a second."""

    live: bool

    def show(self, line: Line) -> None: ...

    def see(self, scene: Scene) -> None: ...


class Stopped(Exception):
    """The user stopped the demo. Every process that it started has ended."""


async def play(place: Place, audience: Audience) -> Result:
    """Play the whole scenario. Raises Stopped after Ctrl-C; no started process is left either way."""
    environ = place.environ()
    config = settings.load(environ)
    store = await open_store(config.store, policy=config.policy)
    workers = WorkerProcesses(place.folder, place.database, environ)
    try:
        # `kept`: in these profiles the shop hangs until the worker there was killed or stopped, so it is busy then.
        with Shop(logged_out=[LOGGED_OUT], doubted=[DOUBTED], kept=[KILLED, PAUSED]) as shop:
            stage = _Stage(store, workers, shop, audience, (await store.check()).now)
            finished = await _until_stopped(stage, config, place)
            left = await wait_until_gone(place.folder)
            if not finished:
                raise Stopped
            return await stage.result(left)
    finally:
        await store.close()


async def _until_stopped(stage: "_Stage", config: settings.Config, place: Place) -> bool:
    """Play until the end (True) or until Ctrl-C (False); the workers have ended in any case."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set():
            stage.workers.ask_to_stop()
        stop.set()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, asked)
    over = asyncio.Event()
    helpers = [
        asyncio.create_task(Sweeper(stage.store, config, reports=LostRunReports(place.data)).run(over)),
        asyncio.create_task(stage.narrate(over)),
        asyncio.create_task(stage.show(over)),
        asyncio.create_task(stage.guard(over, place)),
    ]
    playing = asyncio.create_task(stage.play())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({playing, stopping, *helpers}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (playing, stopping):
            task.cancel()
        await asyncio.gather(playing, stopping, return_exceptions=True)
        if stop.is_set():
            stage.say("stopping: the workers close their browsers")
        await stage.workers.end()
        over.set()
        troubles = [t for t in await asyncio.gather(*helpers, return_exceptions=True) if t is not None]
        for number in signals:
            loop.remove_signal_handler(number)
    if stop.is_set():
        return False
    for trouble in troubles:
        raise trouble
    playing.result()
    return True


class _Stage:
    """One play of the scenario: its steps, and the events that were seen."""

    def __init__(
        self, store: Store, workers: WorkerProcesses, shop: Shop, audience: Audience, began_at: datetime
    ) -> None:
        self.store = store
        self.workers = workers
        self._shop = shop
        self._audience = audience
        self._began_at = began_at
        self._events: list[Event] = []
        self._more = asyncio.Condition()
        self._tasks: dict[str, str] = {}

    def say(self, text: str, about: str = "") -> None:
        """Show an action of the demo itself."""
        at = self._events[-1].at if self._events else self._began_at
        self._audience.show(Line(at=at, about=about, text=text, stage=True))

    async def play(self) -> None:
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await self._play()
        except TimeoutError:
            raise DemoFailed(f"the demo did not come to its end in {MAX_SECONDS:g} s") from None

    async def _play(self) -> None:
        with resources.as_file(resources.files("leasekeeper.demo").joinpath("fleet.yaml")) as path:
            await self.store.apply(load_fleet(path), actor="demo")
        await self._decide(PAUSED_ACCOUNT, Action.PAUSE)
        await self._submit([*FIRST, AGAIN])
        await self.workers.start()
        cues = [
            asyncio.create_task(cue)
            for cue in (self._submit_conflicting_jobs(), self._kill_a_worker(), self._suspend_a_worker())
        ]
        try:
            await self._wait_until_idle(cues)
        finally:
            for cue in cues:
                cue.cancel()
            await asyncio.gather(*cues, return_exceptions=True)

    async def _submit(self, specs: Sequence[JobSpec]) -> None:
        for submitted in await self.store.submit(for_shop(specs, self._shop.url)):
            self._tasks[submitted.job.job_id] = submitted.job.task

    async def _decide(self, account: str, action: Action) -> None:
        await self.store.decide(
            Decision(target=Target.ACCOUNT, id=account, action=action, note="part of the demo", actor="demo")
        )

    async def _submit_conflicting_jobs(self) -> None:
        """Submit two more jobs for a profile just when it is leased: one waits, one is skipped."""
        await self._cue(BUSY, EventType.LEASE_GRANTED, task="monthly_report")
        await self._submit(WHILE_TAKEN)

    async def _kill_a_worker(self) -> None:
        """Kill a worker inside a mutating section, and start another. The profile is not used again."""
        entered = await self._cue(KILLED, EventType.SECTION_ENTERED)
        worker = str(entered.worker_id)
        await self.workers.kill(worker)
        self.say(f"{worker} is killed (SIGKILL) inside {entered.data.get('section')}", KILLED)
        await self.workers.start_worker("laptop-2", pool=LAPTOP)
        await self._decide(PAUSED_ACCOUNT, Action.RESUME)

    async def _suspend_a_worker(self) -> None:
        """Stop a worker until its lease is over. When it continues, it tries to go on and is refused."""
        reached = await self._cue(PAUSED, EventType.CHECKPOINT_SAVED, task="monthly_report")
        worker = str(reached.worker_id)
        await self.workers.sleep(worker)
        self.say(f"{worker} is put to sleep (SIGSTOP) after {reached.data.get('step')}", PAUSED)
        await self._cue(PAUSED, EventType.LEASE_EXPIRED)
        self.workers.wake(worker)
        self.say(f"{worker} is woken (SIGCONT), too late", PAUSED)

    async def _cue(self, profile: str, kind: EventType, task: str | None = None) -> Event:
        """The first event of this kind."""
        seen = 0
        while True:
            for event in self._events[seen:]:
                known = task is None or self._tasks.get(event.job_id or "") == task
                if event.profile_id == profile and event.type is kind and known:
                    return event
            seen = len(self._events)
            async with self._more:
                if len(self._events) == seen:
                    await self._more.wait()

    async def _wait_until_idle(self, cues: Sequence[asyncio.Task[None]]) -> None:
        """Wait until no job can go on by itself. An event that did not come by then never will."""
        idle_polls = 0
        while idle_polls < IDLE_POLLS:
            for cue in cues:
                if cue.done():
                    cue.result()
            stats = await self.store.stats()
            moving = sum(stats.jobs.get(state, 0) for state in ("queued", "scheduled", "running"))
            moving += sum(stats.blocked.get(reason, 0) for reason in _MOVING)
            moving += stats.profiles.get("stale", 0) + stats.profiles.get("leased", 0)
            idle_polls = 0 if moving else idle_polls + 1
            await asyncio.sleep(POLL_SECONDS)

    async def narrate(self, over: asyncio.Event) -> None:
        """Read the event log as it grows, and pass each event to the audience once, in order."""
        seen, last_round = 0, False
        while True:
            page = await self.store.find(Event, {"since": str(seen)}, limit=ALL)
            for event in reversed(page.items):
                seen = event.seq
                self._events.append(event)
                line = line_of(event, self._tasks)
                if line is not None:
                    self._audience.show(line)
            if page.items:
                async with self._more:
                    self._more.notify_all()
            if last_round:
                return
            last_round = over.is_set()
            await _pause(over, EVENT_SECONDS)

    async def show(self, over: asyncio.Event) -> None:
        """Let the audience see the fleet, a few times a second."""
        while not over.is_set():
            if self._audience.live:
                self._audience.see(await self._scene())
            await _pause(over, POLL_SECONDS)

    async def guard(self, over: asyncio.Event, place: Place) -> None:
        """A worker that ends by itself is an error: raise it, with the path of its log."""
        while not over.is_set():
            for name in self.workers.missing():
                raise DemoFailed(f"{name} ended by itself; its log is {place.folder / name}.log")
            await _pause(over, POLL_SECONDS)

    async def _scene(self) -> Scene:
        leases: dict[str, list[Lease]] = {}
        for lease in (await self.store.find(Lease, {"live": "1"}, limit=ALL)).items:
            leases.setdefault(lease.profile_id, []).append(lease)
        arrivals = self._shop.arrivals
        return Scene(
            now=(await self.store.check()).now,
            began_at=self._began_at,
            stats=await self.store.stats(),
            lanes=(await self.store.find(Lane, limit=ALL)).items,
            leases=leases,
            tasks=self._tasks,
            requests=len(arrivals),
            clicks=sum(arrival.click for arrival in arrivals),
        )

    async def result(self, left: Sequence[int]) -> Result:
        """Everything as it is at the end."""
        runs = list(reversed((await self.store.find(RunRecord, limit=ALL)).items))
        ended = {str(run.lease_id): run.ended_at for run in runs if run.ended_at is not None}
        arrivals = self._shop.arrivals
        return Result(
            now=(await self.store.check()).now,
            began_at=self._began_at,
            jobs=list(reversed((await self.store.find(Job, limit=ALL)).items)),
            lanes=(await self.store.find(Lane, limit=ALL)).items,
            runs=runs,
            arrivals=arrivals,
            late=late(arrivals, ended),
            left=left,
        )


async def _pause(over: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(over.wait(), seconds)
