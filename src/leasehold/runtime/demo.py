"""The demonstration: a small fleet on an embedded store; processes claim, hold, lose and settle leases.

There is no browser in it: a task is a few steps on a clock, and it may end like real ones do: well, by a timeout, at
a login form, at a security prompt, or with the death of its worker. Everything else is real.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from importlib import resources
from pathlib import Path

from leasehold import config as settings
from leasehold.core.decisions import Action, Decision, Target
from leasehold.core.events import Event
from leasehold.core.ids import ProfileId, WorkerId
from leasehold.core.jobs import JobSpec, OnConflict, Risk
from leasehold.core.leases import Lease, LeaseRef, Mode
from leasehold.core.settle import Browser, EndFacts, Ending, LostFacts
from leasehold.core.workers import WorkerReport
from leasehold.errors import Fail, LeaseLost
from leasehold.ports import ClaimRequest, Grant, Store
from leasehold.runtime.clocks import boot_time
from leasehold.runtime.heartbeat import Heartbeat, Hold
from leasehold.runtime.sweeper import Sweeper
from leasehold.stores import open_store
from leasehold.wire import load_fleet

TASKS = ("read_orders", "submit_order")
WORKERS = 3
STEP_SECONDS = 0.4
MOST_SECONDS = 90.0
QUIET_LOOKS = 4
# Short, so that a lost worker is noticed while somebody looks on.
TIMES: dict[str, str | float] = {
    "lease_ttl": 3.0, "renew_every": 0.75, "holder_stops_after": 2.0, "lock_delay": 1.0, "sweep_every": 0.5,
    "poll_every": 0.5, "backoff_first": 0.5, "worker_ttl": 5.0,
}  # fmt: skip
# A job that waits for one of these goes on by itself, so the show goes on too.
_MOVING = ("blocked_by_profile_lease", "blocked_by_capacity", "blocked_by_no_worker")

Say = Callable[[str], None]


def _job(profile: str, task: str = "read_orders", ends: str = "well", **fields: object) -> JobSpec:
    return JobSpec(task=task, profile_id=ProfileId(profile), payload={"ends": ends}, **fields)  # type: ignore[arg-type]  # fields of JobSpec, by name


FIRST: Sequence[JobSpec] = (
    _job("store_us_018", "submit_order", idempotency_key="order-2026-0001"),
    _job("store_us_018"),
    _job("store_us_018", ends="with a timeout at first"),
    _job("store_de_main", "submit_order"),
    _job("store_de_backup"),
    _job("store_de_main", ends="with the worker's death"),
    _job("ads_fr_1", "submit_order", ends="with the worker's death"),
    _job("ads_fr_2", ends="at a login form"),
    _job("ads_fr_3", ends="at a security prompt"),
    *(_job("qa_guest", mode=Mode.SHARED) for _ in range(3)),
    _job("bank_uk_003"),
    _job("store_us_018", expected_proxy_region="DE"),
    _job("store_us_018", risk_level=Risk.REVIEW_REQUIRED),
    _job("store_us_018", "submit_order", idempotency_key="order-2026-0001"),
)
WHILE_TAKEN = _job("store_us_018", on_conflict=OnConflict.SKIP)


async def play(url: str, say: Say) -> None:
    """Play the whole thing, saying each event as it happens."""
    config = settings.load(store=url, **TIMES)
    store = await open_store(url, policy=config.policy)
    try:
        with resources.as_file(resources.files("leasehold.runtime").joinpath("demo.yaml")) as path:
            await store.apply(load_fleet(path), actor="demo")
        await _decide(store, Target.ACCOUNT, "bank_uk_003", Action.PAUSE)
        await _play(store, config, url, say)
    finally:
        await store.close()


async def _decide(store: Store, target: Target, record_id: str, action: Action) -> None:
    await store.decide(Decision(target=target, id=record_id, action=action, note="part of the demo", actor="demo"))


async def _play(store: Store, config: settings.Config, url: str, say: Say) -> None:
    stop = asyncio.Event()
    troupe = _Troupe(url, say)
    sweeper = asyncio.create_task(Sweeper(store, config, _lost_without_browser).run(stop))
    teller = asyncio.create_task(_tell(store, say, stop))
    try:
        await troupe.start()
        await store.submit(FIRST)
        async with asyncio.timeout(MOST_SECONDS):
            await _until_taken(store, "store_us_018")
            await store.submit([WHILE_TAKEN])
            await _until_quiet(store, troupe)
    finally:
        await troupe.end()
        stop.set()
        await asyncio.gather(sweeper, teller)


def _lost_without_browser(lease: Lease) -> LostFacts:
    """No browser was ever open, so there is none to outlive its worker."""
    return LostFacts(browser_dead=True, final_url=lease.last_url, reported_by="demo: no browser")


async def _until_taken(store: Store, profile_id: str) -> None:
    while not (await store.find(Lease, {"profile_id": profile_id, "live": "1"})).items:
        await store.wait("default", timedelta(seconds=0.2))


async def _until_quiet(store: Store, troupe: "_Troupe") -> None:
    """Until nothing is left that moves by itself."""
    quiet = 0
    while quiet < QUIET_LOOKS:
        await troupe.replace_dead()
        stats = await store.stats()
        moving = sum(stats.jobs.get(state, 0) for state in ("queued", "scheduled", "running"))
        moving += sum(stats.blocked.get(reason, 0) for reason in _MOVING)
        moving += stats.profiles.get("stale", 0) + stats.profiles.get("leased", 0)
        quiet = 0 if moving else quiet + 1
        await asyncio.sleep(0.25)


async def _tell(store: Store, say: Say, stop: asyncio.Event) -> None:
    """Say each event of the log once, in order."""
    seen = 0
    last_round = False
    while True:
        page = await store.find(Event, {"since": str(seen)}, most=1000)
        for event in reversed(page.items):
            seen = event.seq
            say(sentence(event))
        if last_round:
            return
        last_round = stop.is_set()
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 0.2)


def sentence(event: Event) -> str:
    """One line for one event."""
    about = event.profile_id or event.account_id or event.worker_id or ""
    states = " ".join(
        f"{what} {state}" for what, state in (("job", event.job_state), ("profile", event.profile_state)) if state
    )
    why = next(
        (
            str(event.data[k])
            for k in ("profile_reason", "reason", "section", "step", "decision", "why")
            if event.data.get(k)
        ),
        "",
    )
    return f"{event.at:%H:%M:%S}  {event.type:<28} {about:<16} {states:<34} {why}".rstrip()


class _Troupe:
    """The worker processes. One that dies on stage is replaced, under a new name."""

    def __init__(self, url: str, say: Say) -> None:
        self._url = url
        self._say = say
        self._hired = 0
        self._workers: list[asyncio.subprocess.Process] = []

    async def start(self) -> None:
        for _ in range(WORKERS):
            await self._hire()

    async def _hire(self) -> None:
        self._hired += 1
        self._workers.append(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "leasehold.runtime.demo", self._url, f"worker-{self._hired}"
            )
        )

    async def replace_dead(self) -> None:
        dead = [worker for worker in self._workers if worker.returncode is not None]
        for worker in dead:
            self._workers.remove(worker)
            self._say(
                f"          process {worker.pid} is dead (signal {-(worker.returncode or 0)}); another takes its place"
            )
            await self._hire()

    async def end(self) -> None:
        for worker in self._workers:
            if worker.returncode is None:
                worker.send_signal(signal.SIGTERM)
        await asyncio.gather(*(worker.wait() for worker in self._workers))


async def work(url: str, name: str) -> None:
    """One worker process: claim, run, settle, until told to stop."""
    config = settings.load(store=url, **TIMES)
    store = await open_store(url, policy=config.policy)
    heartbeat = Heartbeat(lambda: open_store(url, policy=config.policy), config.policy.timing)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    worker_id, incarnation = WorkerId(name), f"{name}-{os.getpid()}"
    request = ClaimRequest(worker_id=worker_id, incarnation=incarnation, tasks=TASKS)
    report = WorkerReport(worker_id=worker_id, incarnation=incarnation, pool="default", tasks=TASKS)
    try:
        while not stop.is_set():
            await store.report(report)
            sent_at = boot_time()
            grants = await store.claim(request)
            for grant in grants:
                await _run(store, heartbeat, grant, sent_at)
            if not grants:
                await store.wait("default", config.poll_every)
    finally:
        await asyncio.to_thread(heartbeat.close)
        await store.close()


async def _run(store: Store, heartbeat: Heartbeat, grant: Grant, sent_at: float) -> None:
    hold = heartbeat.hold(grant.lease, sent_at, lambda _why: None)
    ref = grant.lease.ref
    try:
        await _perform(store, grant, ref, hold)
        ending = Ending(ref=ref, facts=EndFacts(browser=Browser.NONE), output={"orders": 3})
    except Fail as fail:
        ending = Ending(ref=ref, reason=fail.reason, message=fail.detail, facts=EndFacts(browser=Browser.NONE))
    except LeaseLost:
        return
    finally:
        heartbeat.drop(hold)
    await store.settle([ending])


async def _perform(store: Store, grant: Grant, ref: LeaseRef, hold: Hold) -> None:
    job = grant.job
    if job is None:
        return
    ends = str(job.payload.get("ends"))
    await asyncio.sleep(STEP_SECONDS)
    hold.check()
    await store.checkpoint(ref, "dashboard_open", url="https://shop.example/dashboard")
    if ends == "at a login form":
        raise Fail("LOGIN_REQUIRED", "the shop shows its login form")
    if ends == "at a security prompt":
        raise Fail("SECURITY_PROMPT", "the shop asks for a code")
    if ends == "with a timeout at first" and job.attempt == 1:
        raise Fail("TIMEOUT", "the orders did not load")
    if job.task == "submit_order":
        await store.enter_section(ref, "submit_order")
    if ends == "with the worker's death" and job.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(STEP_SECONDS)
    hold.check()
    if job.task == "submit_order":
        await store.leave_section(ref, "submit_order")


def database(folder: Path) -> str:
    """The URL of a fresh store in the folder; one that an earlier demo left there is removed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder.resolve() / "leasehold.db"
    for suffix in ("", "-wal", "-shm", "-checkpoint"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return f"sqlite:///{path}"


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2]))
