"""Reads the facts of a fleet for `leasekeeper doctor`, through the port alone. Changes nothing, and reads a bounded
number of records."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, TypeVar

from leasekeeper.config import Config
from leasekeeper.core.accounts import Account
from leasekeeper.core.decisions import Review
from leasekeeper.core.doctor.scale_questions import HISTORY, ScaleFacts
from leasekeeper.core.doctor.store_checks import SweepFacts, WebhookFacts, WorkerFacts
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.profiles import Profile
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.workers import Worker
from leasekeeper.errors import InputError
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Store
from leasekeeper.runtime.outbox import sender_of
from leasekeeper.version import __version__

T = TypeVar("T")

MAX_PAGES: Final = 100
MAX_PAGES_OF_JOBS: Final = 10
WORKER_FORGOTTEN: Final = timedelta(days=1)
_SWEEPS: Final = (EventType.LEASE_EXPIRED, EventType.STALE_RESOLVED)
_COUNTED: Final = (
    EventType.PROFILE_LOCK_CONFLICT,
    EventType.MANUAL_USE_DETECTED,
    EventType.STALE_WORKER_WRITE_REJECTED,
)


async def read_all(store: Store, kind: type[T], pages: int = MAX_PAGES, **where: str) -> list[T]:
    """All records of a kind that match, up to so many pages."""
    found: list[T] = []
    after: str | None = None
    for _ in range(pages):
        page = await store.find(kind, where, after=after, limit=MAX_IN_PAGE)
        found += page.items
        after = page.after
        if after is None:
            break
    return found


async def recent_jobs(store: Store, now: datetime) -> list[Job]:
    """The newest jobs, at most a page of them, not older than HISTORY."""
    page = await store.find(Job, limit=MAX_IN_PAGE)
    return [job for job in page.items if job.created_at > now - HISTORY]


async def sweep_facts(store: Store, config: Config) -> SweepFacts:
    """Since when leases and jobs wait for a sweeper, and when a sweeper last ended or resolved a lease."""
    now = (await store.check()).now
    leases = await read_all(store, Lease, live="1")
    lost = await store.unresolved()
    due = await read_all(store, Job, MAX_PAGES_OF_JOBS, state="scheduled")
    acts = [event.at for kind in _SWEEPS for event in (await store.find(Event, {"type": kind}, limit=1)).items]
    return SweepFacts(
        now=now,
        sweep_every=config.sweep_every,
        expired_since=_oldest((lease.expires_at for lease in leases), now),
        unresolved_since=_oldest(
            ((lease.ended_at or lease.expires_at) + timedelta(milliseconds=lease.lock_delay_ms) for lease in lost), now
        ),
        due_since=_oldest((job.run_at for job in due if job.run_at is not None), now),
        swept_at=max(acts, default=None),
    )


def _oldest(times: Iterable[datetime], now: datetime) -> datetime | None:
    """The earliest of these times that is in the past; None if none is."""
    return min((at for at in times if at < now), default=None)


async def worker_facts(store: Store, config: Config) -> WorkerFacts:
    """The workers of the last day, and how many jobs wait for a worker."""
    stats = await store.stats()
    workers = await read_all(store, Worker)
    return WorkerFacts(
        now=stats.now,
        worker_ttl=config.policy.worker_ttl,
        workers=[w for w in workers if w.stopped_at is None and w.heartbeat_at > stats.now - WORKER_FORGOTTEN],
        waiting_jobs=stats.jobs.get("queued", 0) + stats.blocked.get(Blocked.NO_WORKER, 0),
        version=__version__,
    )


async def webhook_facts(store: Store, config: Config) -> WebhookFacts:
    """Whether webhooks can be sent from here, and how many are pending or exhausted."""
    problem = ""
    try:
        sender = await sender_of(store, config)
    except InputError as error:
        sender, problem = None, error.message
    stats = await store.stats()
    jobs = await recent_jobs(store, stats.now)
    return WebhookFacts(
        now=stats.now,
        secret=sender is not None and sender.keys is not None,
        problem=problem,
        callbacks=any(job.callback_url for job in jobs),
        pending=stats.webhooks.get("pending", 0),
        exhausted=stats.webhooks.get("exhausted", 0),
        due_at=stats.webhooks_due_at,
        tried_at=stats.webhooks_tried_at,
    )


async def scale_facts(store: Store, config: Config, sweep: SweepFacts) -> ScaleFacts:
    """The facts that answer the nineteen questions."""
    now = (await store.check()).now
    since = now - HISTORY
    events = {kind: (await store.find(Event, {"type": kind}, limit=MAX_IN_PAGE)).items for kind in _COUNTED}
    runs = (await store.find(RunRecord, limit=MAX_IN_PAGE)).items
    reviews = await read_all(store, Review, open="1")
    return ScaleFacts(
        now=now,
        policy=config.policy,
        retention=config.retention,
        probes=config.browsers.probe_url is not None,
        sweep=sweep,
        accounts=await read_all(store, Account),
        profiles=await read_all(store, Profile),
        jobs=await recent_jobs(store, now),
        runs=[run for run in runs if run.acquired_at > since],
        leases=[lease for lease in await read_all(store, Lease, live="1") if lease.expires_at > now],
        events={kind: sum(event.at > since for event in found) for kind, found in events.items()},
        reviews=len(reviews),
        oldest_review_at=min((review.opened_at for review in reviews), default=None),
    )
