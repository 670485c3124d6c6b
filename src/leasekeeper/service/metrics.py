"""Metrics in Prometheus' format. Counts of now come from one `stats` of the store; counters and histograms count the
events that this process has read since it started, so any server can show them and none of them asks a worker.

Labels are bounded: of tasks and pools the first `MAX_LABELS` have their own name, of profiles those with most trouble;
all others are `other`.
"""

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from leasekeeper.config import Config
from leasekeeper.core.accounts import Limit
from leasekeeper.core.conflicts import ConflictCause
from leasekeeper.core.decisions import Review
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.failures import Reason
from leasekeeper.core.jobs import FINAL
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import ProfileState
from leasekeeper.core.snapshots import Verdict
from leasekeeper.core.workers import Worker, reports
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Stats, Store
from leasekeeper.service.metric_table import MEASURED, METRICS, PHASES

T = TypeVar("T")
MAX_LABELS: Final = 50
MAX_WAITING: Final = 100_000
MAX_SINGLE_READS: Final = 20
MAX_PAGES: Final = 10
OTHER: Final = "other"
OWN: Final = "own"
_STARTS: Final = frozenset({
    Reason.BROWSER_LAUNCH_FAILED, Reason.PROFILE_IN_USE_ELSEWHERE, Reason.PROFILE_CORRUPT,
    Reason.PROFILE_NEWER_THAN_BROWSER, Reason.PROFILE_DIRECTORY_EMPTY, Reason.PROXY_UNREACHABLE,
    Reason.PROXY_REGION_MISMATCH, Reason.PROXY_CHANGED, Reason.SECRET_UNAVAILABLE, Reason.SNAPSHOT_UNAVAILABLE,
})  # fmt: skip
_OF_PROFILES: Final = (
    "leasekeeper_profile_runs_total", "leasekeeper_profile_prompts_total", "leasekeeper_profile_bans_total",
    "leasekeeper_profiles_quarantined_total",
)  # fmt: skip
_PROMPTS: Final = frozenset({Reason.SECURITY_PROMPT, Reason.LOGIN_REQUIRED, Reason.HUMAN_REVIEW_REQUIRED})
# Counter, label, or the field of the event's data that is the label.
_COUNTED: Final = {
    EventType.PROFILE_LOCK_CONFLICT: ("leasekeeper_conflicts_total", "", "cause"),
    EventType.LEASE_EXPIRED: ("leasekeeper_leases_lost_total", "expired", ""),
    EventType.LEASE_REVOKED: ("leasekeeper_leases_lost_total", "revoked", ""),
    EventType.STALE_WORKER_WRITE_REJECTED: ("leasekeeper_late_writes_rejected_total", "", "write"),
    EventType.WEBHOOK_DELIVERED: ("leasekeeper_webhooks_total", "delivered", ""),
    EventType.WEBHOOK_EXHAUSTED: ("leasekeeper_webhooks_total", "exhausted", ""),
}
# Series that exist from the start, at 0: Prometheus' `increase` misses the first event of a series that begins with it.
_WRITES: Final = (
    "renew", "checkpoint", "enter_section", "leave_section", "write_note", "request_person", "transfer", "settle",
    "evidence", "snapshot",
)  # fmt: skip
_FROM_START: Final[Mapping[str, Iterable[tuple[str, ...]]]] = {
    "leasekeeper_events_total": [(kind.value,) for kind in EventType],
    "leasekeeper_jobs_ended_total": [(state.value,) for state in sorted(FINAL)],
    "leasekeeper_runs_total": [("completed", ""), *(("failed", reason) for reason in (*map(str, Reason), OWN))],
    "leasekeeper_browser_start_failures_total": [(reason.value,) for reason in sorted(_STARTS)],
    "leasekeeper_snapshots_total": [(verdict.value,) for verdict in Verdict],
    "leasekeeper_conflicts_total": [(cause.value,) for cause in ConflictCause],
    "leasekeeper_leases_lost_total": [("expired",), ("revoked",)],
    "leasekeeper_late_writes_rejected_total": [(write,) for write in _WRITES],
    "leasekeeper_webhooks_total": [("delivered",), ("exhausted",)],
    "leasekeeper_profile_runs_total": [(OTHER,)],
    "leasekeeper_profile_prompts_total": [(OTHER, reason.value) for reason in sorted(_PROMPTS)],
    "leasekeeper_profile_bans_total": [(OTHER,)],
    "leasekeeper_profiles_quarantined_total": [(OTHER,)],
    "leasekeeper_store_call_seconds": [(operation,) for operation in sorted(MEASURED)],
}
_BEGINS_TO_WAIT: Final = frozenset({EventType.JOB_SUBMITTED, EventType.JOB_DUE, EventType.JOB_UNBLOCKED})


class Names:
    """Values of one label: the first ones under their own name, the rest as `other`."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, name: str | None) -> str:
        if name is None:
            return ""
        if name not in self._known and len(self._known) >= MAX_LABELS:
            return OTHER
        self._known.add(name)
        return name


class TroubledProfiles:
    """The profiles with most trouble under their own name, the rest as `other`. At most `MAX_LABELS` have a name at any
    time.

    A profile with more trouble replaces the one with least: `drop` is called for that, so that its series end. Counts
    under `other` stay there: no counter ever goes down.
    """

    def __init__(self, drop: Callable[[str], None]) -> None:
        self._drop = drop
        self._trouble: dict[str, int] = {}
        self._named: set[str] = set()

    def troubled(self, profile: str) -> None:
        """Something went wrong in this profile."""
        if profile not in self._trouble and len(self._trouble) >= MAX_WAITING:
            return
        self._trouble[profile] = self._trouble.get(profile, 0) + 1
        if profile in self._named:
            return
        if len(self._named) >= MAX_LABELS:
            least = min(self._named, key=lambda each: (self._trouble[each], each))
            if self._trouble[least] >= self._trouble[profile]:
                return
            self._named.discard(least)
            self._drop(least)
        self._named.add(profile)

    def __call__(self, profile: str | None) -> str:
        return profile if profile is not None and profile in self._named else OTHER


class Metrics:
    """The counters of this process, and the gauges of the store."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._worker_ttl = config.policy.worker_ttl
        # `_created` series are of no use here, and double their number.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no hint for it
        self._registry = CollectorRegistry(auto_describe=False)
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for row in METRICS:
            if row.kind == "counter":
                self._counters[row.name] = Counter(
                    row.name.removesuffix("_total"), row.help, row.labels, registry=self._registry
                )
            elif row.kind == "histogram":
                self._histograms[row.name] = Histogram(
                    row.name, row.help, row.labels, registry=self._registry, buckets=row.buckets
                )
        for name, series in _FROM_START.items():
            for labels in series:
                (self._counters.get(name) or self._histograms[name]).labels(*labels)
        self._profiles, self._tasks, self._pools = TroubledProfiles(self._forget), Names(), Names()
        self._waiting: dict[str, tuple[datetime, str]] = {}  # job → since when it waits, and its task
        self._ended: set[str] = set()  # runs whose times were not read yet

    def seen(self, event: Event) -> None:
        """Count one event."""
        self._count("leasekeeper_events_total", event.type.value)
        if event.type in _COUNTED:
            name, label, field = _COUNTED[event.type]
            self._count(name, label or str(event.data.get(field, "")))
        if event.type in _BEGINS_TO_WAIT and event.job_id is not None and len(self._waiting) < MAX_WAITING:
            self._waiting[event.job_id] = (event.at, str(event.data.get("task", "")))
        elif event.type is EventType.LEASE_GRANTED and event.job_id is not None:
            self._granted(event.job_id, event.at)
        elif event.type is EventType.RUN_SETTLED:
            self._settled(event)
            self._sized(event.data)
        elif event.type is EventType.SNAPSHOT_SAVED:
            self._saved(event.data)
        if event.job_state in FINAL:
            self._count("leasekeeper_jobs_ended_total", str(event.job_state))
            self._waiting.pop(event.job_id or "", None)
        if event.profile_state is ProfileState.QUARANTINED and event.profile_id is not None:
            self._profiles.troubled(event.profile_id)
            self._count("leasekeeper_profiles_quarantined_total", self._profiles(event.profile_id))
            self._count("leasekeeper_quarantines_total")

    def called(self, operation: str, seconds: float) -> None:
        """Observe the duration of a store call. Thread-safe."""
        self._histograms["leasekeeper_store_call_seconds"].labels(operation).observe(seconds)

    def _forget(self, profile: str) -> None:
        for name in _OF_PROFILES:
            self._counters[name].remove_by_labels({"profile": profile})

    def _count(self, name: str, *labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc()

    def _granted(self, job_id: str, at: datetime) -> None:
        since, task = self._waiting.pop(job_id, (None, ""))
        if since is not None:
            waited = max(0.0, (at - since).total_seconds())
            self._histograms["leasekeeper_job_wait_seconds"].labels(self._tasks(task)).observe(waited)

    def _saved(self, snapshot: Mapping[str, object]) -> None:
        """A snapshot was taken."""
        packed = snapshot.get("packed_bytes")
        self._count("leasekeeper_snapshots_total", str(snapshot.get("verdict", "")))
        if isinstance(packed, int):
            self._counters["leasekeeper_snapshot_bytes_total"].inc(packed)

    def _sized(self, run: Mapping[str, object]) -> None:
        """A run has ended: observe the size of the profile's directory, if it used one."""
        size = run.get("size_bytes")
        if isinstance(size, int):
            self._histograms["leasekeeper_profile_size_bytes"].observe(size)

    def _settled(self, event: Event) -> None:
        reason = str(event.data.get("stop_reason") or "")
        result = str(event.data.get("result", ""))
        known = reason if not reason or reason in set(Reason) else OWN
        self._count("leasekeeper_runs_total", result, known)
        if reason in _STARTS:
            self._count("leasekeeper_browser_start_failures_total", reason)
        if reason in (*_PROMPTS, Reason.ACCOUNT_BANNED) and event.profile_id is not None:
            self._profiles.troubled(event.profile_id)
        profile = self._profiles(event.profile_id)
        self._count("leasekeeper_profile_runs_total", profile)
        if reason in _PROMPTS:
            self._count("leasekeeper_profile_prompts_total", profile, reason)
        if reason == Reason.ACCOUNT_BANNED:
            self._count("leasekeeper_profile_bans_total", profile)
            self._count("leasekeeper_bans_total")
        if event.run_id is not None and len(self._ended) < MAX_WAITING:
            self._ended.add(event.run_id)

    async def text(self) -> bytes:
        """All metrics as text, for a scrape."""
        await self._read_runs()
        stats = await self._store.stats()
        limits = await self._listed(Limit)
        workers = await self._listed(Worker)
        # The newest are first.
        reviews = await self._listed(Review, {"open": "1"})
        oldest = reviews[-1].opened_at if reviews else None
        now = _Now(_gauges(stats, limits, workers, oldest, self._worker_ttl, self._pools))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(now)
        return generate_latest(registry) + generate_latest(self._registry)

    async def _read_runs(self) -> None:
        """The times of runs that ended since the last call, by phase."""
        missing, self._ended = self._ended, set()
        runs: list[RunRecord] = []
        after: str | None = None
        for _ in range(MAX_PAGES if missing else 0):
            page = await self._store.find(RunRecord, {"live": "0"}, after=after, limit=MAX_IN_PAGE)
            runs += [run for run in page.items if run.run_id in missing]
            missing -= {run.run_id for run in page.items}
            after = page.after
            if after is None or len(missing) <= MAX_SINGLE_READS:
                break
        # Runs that began long ago are not among the newest. After a large burst some are left out.
        for run_id in sorted(missing)[:MAX_SINGLE_READS]:
            runs += (await self._store.find(RunRecord, {"run_id": run_id}, limit=1)).items
        histogram = self._histograms["leasekeeper_run_seconds"]
        for run in runs:
            task = self._tasks(run.task or "")
            if run.ended_at is not None:
                histogram.labels(task, "all").observe((run.ended_at - run.acquired_at).total_seconds())
            for phase in PHASES:
                if phase in run.timings:
                    histogram.labels(task, phase).observe(run.timings[phase])

    async def _listed(self, kind: type[T], where: Mapping[str, str] | None = None) -> list[T]:
        """The first 10,000 records of a list."""
        found: list[T] = []
        after: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._store.find(kind, where, after=after, limit=MAX_IN_PAGE)
            found += page.items
            after = page.after
            if after is None:
                break
        return found


class _Now(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def _gauges(
    stats: Stats,
    limits: Iterable[Limit],
    workers: Iterable[Worker],
    oldest_review: datetime | None,
    worker_ttl: timedelta,
    pools: Names,
) -> Iterator[Metric]:
    """The gauges of the table, from what the store says now."""
    open_jobs = ("scheduled", "queued", "blocked", "running", "review")
    freshness: dict[str, int] = {"reporting": 0, "silent": 0, "unwell": 0}
    for worker in workers:
        if worker.stopped_at is None:
            fresh = reports(worker, stats.now, worker_ttl)
            freshness["silent" if not fresh else "unwell" if worker.unwell_reason else "reporting"] += 1
    # Pools with a limit are named first. The limits of the others are summed, as their leases are.
    leases, allowed = Counts[str](), Counts[str]()
    for limit in limits:
        allowed[pools(limit.pool)] += limit.max_leases
    for pool, count in stats.leases.items():
        leases[pools(pool)] += count
    values: dict[str, dict[tuple[str, ...], float]] = {
        "leasekeeper_jobs": {(state,): stats.jobs.get(state, 0) for state in open_jobs},
        "leasekeeper_jobs_blocked": {(reason,): count for reason, count in stats.blocked.items()},
        "leasekeeper_profiles": {(state.value,): stats.profiles.get(state.value, 0) for state in ProfileState},
        "leasekeeper_pool_leases": {(pool,): count for pool, count in leases.items()},
        "leasekeeper_pool_limit": {(pool,): count for pool, count in allowed.items()},
        "leasekeeper_reviews_open": {(): stats.reviews},
        "leasekeeper_review_oldest_age_seconds": {(): _age(stats.now, oldest_review)},
        "leasekeeper_webhooks_pending": {(): stats.webhooks.get("pending", 0)},
        "leasekeeper_webhooks_exhausted": {(): stats.webhooks.get("exhausted", 0)},
        "leasekeeper_webhook_lag_seconds": {(): _age(stats.now, stats.webhooks_due_at)},
        "leasekeeper_workers": {(state,): count for state, count in freshness.items()},
    }
    for row in METRICS:
        if row.kind == "gauge":
            family = GaugeMetricFamily(row.name, row.help, labels=row.labels)
            for labels, value in values[row.name].items():
                family.add_metric(list(labels), value)
            yield family


def _age(now: datetime, since: datetime | None) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())
