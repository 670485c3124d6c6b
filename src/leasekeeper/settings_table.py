"""Every setting in one table: name, default, unit, one line of documentation. The docs' table is generated from it."""

from dataclasses import dataclass
from typing import Final

PREFIX: Final = "LEASEKEEPER_"
SWITCH: Final = "0 or 1"
MAX_DAYS: Final = 36_500.0


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `default` None means 'off' or 'none'; `minimum` and `maximum` are the limits of a number. A
    `secret` is never shown."""

    name: str
    default: str | float | None
    unit: str
    doc: str
    minimum: float = 0.0
    maximum: float = 1e9
    secret: bool = False

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


SETTINGS: Final = (
    Setting(
        "store",
        "sqlite:///leasekeeper.db",
        "URL",
        "the database of leases and jobs: sqlite:///FILE, postgresql://…, redis://… or the https://… of a server",
    ),
    Setting("token", "", "lk_…", "the token for a store that is a server", secret=True),
    Setting(
        "store_ca",
        "",
        "path",
        "CA certificates (PEM) to check the server's certificate with; empty: those that this machine trusts",
    ),
    Setting(
        "store_timeout",
        15.0,
        "seconds",
        "timeout of PostgreSQL, Redis or a server, then the call is retried; less than half of holder_stops_after",
        0.1,
    ),
    Setting("lease_ttl", 60.0, "seconds", "a lease without a heartbeat expires after this", 1),
    Setting("renew_every", 15.0, "seconds", "how often a holder renews its lease", 0.05),
    Setting("renew_at_least_every", 60.0, "seconds", "a lease with a long TTL is renewed at least this often", 0.05),
    Setting(
        "holder_stops_after",
        40.0,
        "seconds",
        "deadline of a holder: it stops this long after its last acknowledged renewal was sent",
        0.1,
    ),
    Setting(
        "lock_delay",
        15.0,
        "seconds",
        "minimum time between the expiry of a lease and the recovery of its profile",
        0,
    ),
    Setting("sweep_every", 5.0, "seconds", "how often a sweeper checks for expired leases and due jobs", 0.05),
    Setting(
        "poll_every",
        2.0,
        "seconds",
        "maximum time between two claims of an idle worker; of remote ones, of one worker of their pool",
        0.05,
    ),
    Setting("worker_ttl", 90.0, "seconds", "a worker that has not reported for this long counts as gone", 1),
    Setting("long_run", 600.0, "seconds", "a run that takes longer counts as a long run in conflict reports", 1),
    Setting("backoff_first", 10.0, "seconds", "delay before the second attempt", 0),
    Setting("backoff_factor", 2.0, "factor", "each further delay is multiplied by this", 1, 100),
    Setting("backoff_max", 900.0, "seconds", "maximum delay between attempts", 0),
    Setting(
        "clock_tolerance",
        5.0,
        "seconds",
        "maximum jump of the store's clock, compared with a sweeper's, before expiry is paused",
        0.1,
    ),
    Setting("strict_tasks", 0.0, SWITCH, "refuse jobs whose task no worker of the pool has ever offered", 0, 1),
    Setting(
        "schedule_grace",
        300.0,
        "seconds",
        "how late a time of a schedule may be handled and still count as on time, not as missed",
        0,
    ),
    Setting(
        "home_wait",
        10.0,
        "seconds",
        "how long a job waits for a worker of the machine that has its profile's directory, before others fetch it",
        0,
    ),
    Setting(
        "keep_jobs",
        30.0,
        "days",
        "finished jobs and their runs are deleted after this; 0 keeps them for ever",
        0,
        MAX_DAYS,
    ),
    Setting("keep_events", 90.0, "days", "events are deleted after this; 0 keeps them for ever", 0, MAX_DAYS),
    Setting(
        "data_dir",
        "leasekeeper-data",
        "folder",
        "profiles without a directory of their own, and evidence of runs. The default is beside the SQLite file; with "
        "another store, beside the settings file, else in the working directory",
    ),
    Setting(
        "drivers",
        "local",
        "names",
        "the browser drivers a worker checks when it starts, separated by spaces: local null",
    ),
    Setting("browser", "", "path", "the browser to run; empty: Playwright's own, chromium, or google-chrome"),
    Setting("browser_args", "", "arguments", "more arguments for the browser, separated by spaces"),
    Setting(
        "launch_together",
        0.0,
        "browsers",
        "maximum that a worker starts at the same time; 0: as many as cores",
        0,
        1000,
    ),
    Setting("headless_without_display", 0.0, SWITCH, "run jobs with run_mode visible headless without a display", 0, 1),
    Setting("task_timeout", 1800.0, "seconds", "timeout of a task that has none of its own; 0: no timeout", 0),
    Setting("stop_grace", 30.0, "seconds", "how long running tasks may continue after a worker was asked to stop", 0),
    Setting("close_after", 10.0, "seconds", "timeout of a browser's close, then it gets SIGINT", 0.1),
    Setting(
        "max_message_mb",
        64.0,
        "MB",
        "maximum size of a DevTools message; a browser that sends a larger one is closed, before Playwright gets it",
        1,
        400,
    ),
    Setting(
        "run_memory_mb",
        2048.0,
        "MB",
        "memory limit of one run or session, which ends alone above it: of its browser, and of a plain task's own "
        "Playwright process. `open` warns above it, and ends at twice the limit. Browsers of launchers are not "
        "measured; 0: no limit",
        0,
    ),
    Setting(
        "playwright_memory_mb",
        1024.0,
        "MB",
        "memory limit of the Playwright process of a worker's async tasks; above it new runs get another process, "
        "above twice the limit the run whose browser sent the most ends; 0: no limit",
        0,
    ),
    Setting("warm_runs", 20.0, "runs", "maximum runs of one browser before it is closed; 1: no hand-over", 1),
    Setting("warm_age", 600.0, "seconds", "maximum age of a browser that is handed over to another run", 0),
    Setting("warm_idle", 0.0, "seconds", "how long a completed run waits, unsettled, for the next job", 0),
    Setting(
        "machine",
        "",
        "name",
        "this machine, as the home of profile directories; empty: the name in data_dir. "
        "Machines that share all directories have the same",
    ),
    Setting("evidence", "", "place", "a folder, s3://BUCKET/PREFIX or server; empty: data_dir, or the store's server"),
    Setting("keep_evidence", 30.0, "days", "evidence files are deleted after this; 0 keeps them for ever", 0, MAX_DAYS),
    Setting("keep_evidence_mb", 10240.0, "MB", "maximum of all evidence; the oldest is deleted; 0: no limit", 0),
    Setting(
        "profile_store",
        "",
        "place",
        "where snapshots of profiles are: s3://BUCKET/PREFIX, file:///FOLDER or server; empty: what the fleet says",
    ),
    Setting("unencrypted_snapshots", 0.0, SWITCH, "upload snapshots of profiles although no key is set", 0, 1),
    Setting(
        "webhook_secret",
        "",
        "whsec_…",
        "signs webhooks, or secret:NAME of a stored one; several, separated by spaces, to rotate it; "
        "empty: none are sent",
        secret=True,
    ),
    Setting(
        "webhook_networks",
        "",
        "networks",
        "networks that webhooks may go to besides public addresses: 10.0.0.0/8 127.0.0.1, separated by spaces",
    ),
    Setting("webhook_timeout", 15.0, "seconds", "timeout of a receiver's response to a webhook", 0.1, 300),
    Setting("server_host", "127.0.0.1", "address", "where a server listens"),
    Setting("server_port", 7070.0, "port", "that a server listens on; 0 takes a free one", 0, 65_535),
    Setting("metrics_open", 0.0, SWITCH, "callers on this machine need no token for /metrics", 0, 1),
    Setting("log_format", "auto", "format", "of log lines: logfmt, json, or auto (logfmt on a terminal)"),
    Setting(
        "secret_key",
        "",
        "lkey_…",
        "encrypts secrets in the store; several, separated by spaces, the current one first, while one is replaced",
        secret=True,
    ),
    Setting("secret_key_file", "", "path", "the same, from a file that only its owner may read (mode 0600)"),
    Setting("probe_url", "", "URL", "fetched through a profile's proxy before and after each run; empty: no check"),
)
