"""Every metric in one table: name, kind, labels, one line of help. The reference, the dashboard's test and the program
are made of it. Standard library only."""

from dataclasses import dataclass
from typing import Final

PHASES: Final = ("open", "task", "evidence", "close")
# For store calls: a claim or a settle takes milliseconds.
CALL_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# The calls of the store that are timed: those that jobs wait for.
MEASURED: Final = frozenset({
    "acquire", "claim", "hand_over", "transfer", "renew", "checkpoint", "enter_section", "leave_section", "settle",
    "submit",
})  # fmt: skip
SIZES: Final = (1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9)
SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600)


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric. Gauges are counts of now; counters and histograms count from the start of the process."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = SECONDS


METRICS: Final = (
    MetricRow("leasekeeper_jobs", "gauge", "Open jobs by state, as lists show it.", ("state",)),
    MetricRow("leasekeeper_jobs_blocked", "gauge", "Blocked jobs by reason.", ("reason",)),
    MetricRow("leasekeeper_profiles", "gauge", "Profiles by state.", ("state",)),
    MetricRow("leasekeeper_pool_leases", "gauge", "Live leases by pool.", ("pool",)),
    MetricRow("leasekeeper_pool_limit", "gauge", "The limit of live leases of a pool that has one.", ("pool",)),
    MetricRow("leasekeeper_reviews_open", "gauge", "Reviews that wait for a person."),
    MetricRow("leasekeeper_review_oldest_age_seconds", "gauge", "Age of the oldest open review; 0 if there is none."),
    MetricRow("leasekeeper_webhooks_pending", "gauge", "Webhook messages that are pending."),
    MetricRow("leasekeeper_webhooks_exhausted", "gauge", "Webhooks that were given up (exhausted)."),
    MetricRow("leasekeeper_webhook_lag_seconds", "gauge", "How long the first pending webhook is overdue."),
    MetricRow("leasekeeper_workers", "gauge", "Workers that did not stop: reporting, silent or unwell.", ("state",)),
    MetricRow("leasekeeper_events_total", "counter", "Events of the audit log by type.", ("type",)),
    MetricRow("leasekeeper_jobs_ended_total", "counter", "Jobs that ended, by final state.", ("state",)),
    MetricRow(
        "leasekeeper_runs_total",
        "counter",
        "Runs that were settled, by result and reason; a project's own reasons are `own`.",
        ("result", "reason"),
    ),
    MetricRow(
        "leasekeeper_browser_start_failures_total",
        "counter",
        "Runs whose browser could not be started, by reason.",
        ("reason",),
    ),
    MetricRow("leasekeeper_snapshots_total", "counter", "Snapshots of profiles, by what the canary said.", ("login",)),
    MetricRow("leasekeeper_snapshot_bytes_total", "counter", "Bytes of snapshots that were uploaded, as packed."),
    MetricRow(
        "leasekeeper_profile_size_bytes",
        "histogram",
        "Size of a profile's directory, at the end of each run in it.",
        buckets=SIZES,
    ),
    MetricRow("leasekeeper_conflicts_total", "counter", "Jobs whose profile was taken when they were due.", ("cause",)),
    MetricRow("leasekeeper_leases_lost_total", "counter", "Leases that expired or were revoked.", ("how",)),
    MetricRow(
        "leasekeeper_late_writes_rejected_total", "counter", "Writes under a lease that was not live.", ("write",)
    ),
    MetricRow("leasekeeper_webhooks_total", "counter", "Webhooks that were delivered or exhausted.", ("outcome",)),
    MetricRow(
        "leasekeeper_profile_runs_total",
        "counter",
        "Runs that were settled, for the 50 profiles with most trouble; the rest is `other`.",
        ("profile",),
    ),
    MetricRow(
        "leasekeeper_profile_prompts_total",
        "counter",
        "Runs that a login, a security prompt or a request for a person stopped, for the same profiles.",
        ("profile", "reason"),
    ),
    MetricRow(
        "leasekeeper_profile_bans_total",
        "counter",
        "Runs that found their account banned, for the same profiles.",
        ("profile",),
    ),
    MetricRow(
        "leasekeeper_profiles_quarantined_total",
        "counter",
        "Times that a profile was quarantined, for the same profiles.",
        ("profile",),
    ),
    MetricRow("leasekeeper_bans_total", "counter", "Runs that found their account banned, in any profile."),
    MetricRow("leasekeeper_quarantines_total", "counter", "Times that any profile was quarantined."),
    MetricRow(
        "leasekeeper_job_wait_seconds", "histogram", "From when a job was due until it got its lease.", ("task",)
    ),
    MetricRow(
        "leasekeeper_run_seconds",
        "histogram",
        "Duration of runs by phase: open, task, evidence, close, or all.",
        ("task", "phase"),
    ),
    MetricRow(
        "leasekeeper_store_call_seconds",
        "histogram",
        "Calls of the store by this server and by the worker beside it (`up`), by operation: claim, settle and others.",
        ("operation",),
        CALL_SECONDS,
    ),
)
