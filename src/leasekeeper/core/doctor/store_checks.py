"""Checks of the store and of what runs around it: schema, clock, sweeper, workers, webhooks. Facts in, verdict out."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from leasekeeper.core.doctor.findings import Advice, Step, Verdict, count, fail, names, ok, skip, span, warn
from leasekeeper.core.workers import Worker, reports


def judge_schema(schema: int, newest: int) -> Verdict:
    facts = {"schema": schema, "newest_schema": newest}
    if schema == newest:
        return ok(f"schema {schema}, the newest this program knows", **facts)
    if schema > newest:
        return fail(
            f"schema {schema}; this program knows {newest}",
            Advice.UPGRADE_PROGRAM,
            **facts,
        )
    found = f"schema {schema}; this program needs {newest}" if schema else "the store has no tables yet"
    return fail(found, Advice.MIGRATE_STORE, Step.MIGRATE_STORE, **facts)


# From here on receivers of webhooks refuse a message for its timestamp.
CLOCK_FAILS: Final = timedelta(minutes=5)


def judge_clock(offset: timedelta, round_trip: timedelta, tolerance: timedelta) -> Verdict:
    """`offset` is the store's clock against this machine's, exact to half the round trip."""
    facts = {"offset_seconds": offset.total_seconds(), "round_trip_seconds": round_trip.total_seconds()}
    sure = max(abs(offset) - round_trip / 2, timedelta(0))
    if sure <= tolerance:
        return ok(f"they agree within {span(tolerance)}", **facts)
    side = "ahead of" if offset > timedelta(0) else "behind"
    found = f"the store's clock is {span(abs(offset))} {side} this machine's"
    return (fail if sure > CLOCK_FAILS else warn)(found, Advice.SET_CLOCKS, **facts)


SWEEP_WARNS: Final = timedelta(minutes=1)
SWEEP_FAILS: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFacts:
    """What waits for a sweeper: since when the oldest of each kind is overdue. `swept_at`: a
    sweeper's last visible act."""

    now: datetime
    sweep_every: timedelta
    expired_since: datetime | None = None
    unresolved_since: datetime | None = None
    due_since: datetime | None = None
    swept_at: datetime | None = None

    @property
    def late(self) -> timedelta:
        """How long the oldest overdue item has waited."""
        since = [at for at in (self.expired_since, self.unresolved_since, self.due_since) if at is not None]
        return max(self.now - min(since), timedelta(0)) if since else timedelta(0)

    @property
    def nobody(self) -> bool:
        """Whether no sweeper seems to run."""
        return self.late > max(SWEEP_WARNS, 3 * self.sweep_every)


def judge_sweeper(facts: SweepFacts) -> Verdict:
    data = {
        "late_seconds": facts.late.total_seconds(),
        "expired_since": facts.expired_since,
        "unresolved_since": facts.unresolved_since,
        "due_since": facts.due_since,
        "swept_at": facts.swept_at,
    }
    if not facts.nobody:
        seen = f"; it last ended or resolved a lease {span(facts.now - facts.swept_at)} ago" if facts.swept_at else ""
        return ok(f"nothing is overdue{seen}", **data)
    waiting = [
        what
        for what, since in (
            ("expired leases", facts.expired_since),
            ("lost runs", facts.unresolved_since),
            ("due jobs", facts.due_since),
        )
        if since is not None
    ]
    found = f"{' and '.join(waiting)} wait to be swept, the oldest for {span(facts.late)}"
    return (fail if facts.late > SWEEP_FAILS else warn)(found, Advice.RUN_SWEEPER, Step.START_SWEEPER, **data)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """Workers that did not report that they stop, the number of jobs that wait for one, and this program's version."""

    now: datetime
    worker_ttl: timedelta
    workers: Sequence[Worker]
    waiting_jobs: int
    version: str


def judge_workers(facts: WorkerFacts) -> Verdict:
    live = [worker for worker in facts.workers if reports(worker, facts.now, facts.worker_ttl)]
    silent = [w.worker_id for w in facts.workers if w.stopped_at is None and w not in live]
    versions = sorted({worker.version or "unknown" for worker in live})
    engines = sorted({worker.engine for worker in live if worker.engine is not None})
    data = {
        "live": len(live),
        "silent": silent,
        "versions": versions,
        "engines": engines,
        "waiting_jobs": facts.waiting_jobs,
        "this_version": facts.version,
    }
    if not live and facts.waiting_jobs:
        found = f"no worker reports, and {count(facts.waiting_jobs, 'job')} could run"
        return fail(found, Advice.START_WORKER, Step.START_WORKER, **data)
    if not live and not silent:
        return skip("no worker reports, and no job waits for one", **data)
    trouble = _worker_trouble(live, silent, versions, engines, facts.version)
    if trouble is not None:
        found, todo = trouble
        return warn(found, todo, **data)
    engine = f", browser version {engines[0]}" if engines else ""
    return ok(f"{count(len(live), 'worker')}, Leasekeeper {versions[0]}{engine}", **data)


def _worker_trouble(
    live: Sequence[Worker], silent: Sequence[str], versions: Sequence[str], engines: Sequence[int], own: str
) -> tuple[str, Advice] | None:
    if len(versions) > 1:
        return f"live workers run Leasekeeper {names(versions)}", Advice.BRING_WORKERS_TO_ONE_VERSION
    if live and versions[0] != own:
        return f"workers run Leasekeeper {versions[0]}, this program is {own}", Advice.BRING_BOTH_TO_ONE_VERSION
    if len(engines) > 1:
        return (
            f"live workers have browser versions {names([str(engine) for engine in engines])}",
            Advice.BRING_BROWSERS_TO_ONE_VERSION,
        )
    if silent:
        return (
            f"{count(len(silent), 'worker')} stopped reporting without a goodbye: {names(silent)}",
            Advice.READ_LOGS,
        )
    return None


WEBHOOKS_LATE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookFacts:
    """Whether this machine can send webhooks (`problem`: what is wrong with its settings), and what
    waits to be sent."""

    now: datetime
    secret: bool
    problem: str = ""
    callbacks: bool = False
    pending: int = 0
    exhausted: int = 0
    due_at: datetime | None = None
    tried_at: datetime | None = None


def judge_webhooks(facts: WebhookFacts) -> Verdict:
    late = max(facts.now - facts.due_at, timedelta(0)) if facts.due_at is not None else timedelta(0)
    data = {
        "secret_set": facts.secret,
        "pending": facts.pending,
        "exhausted": facts.exhausted,
        "oldest_due_seconds": late.total_seconds(),
    }
    tried = facts.tried_at is not None and facts.tried_at > facts.now - WEBHOOKS_LATE
    if facts.problem:
        return fail(facts.problem, Advice.CORRECT_WEBHOOK_SETTINGS, **data)
    if late > WEBHOOKS_LATE and not tried:
        found = f"{count(facts.pending, 'message')} wait, the oldest is due for {span(late)}, and nobody sends"
        if facts.secret:
            return fail(found, Advice.RUN_SENDING_SWEEPER, Step.START_SWEEPER, **data)
        todo = (Advice.SET_WEBHOOK_SECRET, Advice.RUN_SENDING_SWEEPER)
        return fail(found, *todo, Step.MAKE_WEBHOOK_SECRET, Step.START_SWEEPER, **data)
    if facts.exhausted:
        return warn(
            f"gave up on {count(facts.exhausted, 'message')} that no receiver took",
            Advice.REPLAY_WEBHOOKS,
            Step.LIST_EXHAUSTED_WEBHOOKS,
            **data,
        )
    if facts.callbacks and not facts.secret and not tried:
        return warn(
            "jobs have a callback_url, and no secret is set here",
            Advice.SET_SWEEPERS_WEBHOOK_SECRET,
            Step.MAKE_WEBHOOK_SECRET,
            **data,
        )
    if not facts.callbacks and not facts.pending:
        return skip("no recent job has a callback_url", **data)
    return ok(f"{facts.pending:,} wait to be sent, none is late", **data)
