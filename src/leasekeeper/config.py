"""Every setting in one table: name, default, unit, one line of documentation.

A setting is read from the environment as LEASEKEEPER_<NAME>; the docs' table is generated from SETTINGS.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from leasekeeper.core.jobs import Backoff
from leasekeeper.core.leases import Timing
from leasekeeper.core.policy import Policy, Retention
from leasekeeper.errors import InputError, Problem, nearest

PREFIX: Final = "LEASEKEEPER_"
NEARLY: Final = 0.9


MOST_DAYS: Final = 36_500.0


@dataclass(frozen=True, slots=True)
class Setting:
    """One knob. `default` None means 'off' or 'none'; `least` and `most` bound a number."""

    name: str
    default: str | float | None
    unit: str
    doc: str
    least: float = 0.0
    most: float = 1e9


SETTINGS: Final = (
    Setting(
        "store",
        "sqlite:///leasekeeper.db",
        "URL",
        "where leases and jobs live: sqlite:///FILE or postgresql://…",
    ),
    Setting("lease_ttl", 60.0, "seconds", "how long a lease lasts without a heartbeat", 1),
    Setting("renew_every", 15.0, "seconds", "how often a holder renews", 0.05),
    Setting(
        "holder_stops_after",
        40.0,
        "seconds",
        "a holder stops itself this long after its last acknowledged renewal",
        0.1,
    ),
    Setting(
        "lock_delay",
        15.0,
        "seconds",
        "how long after an expiry a profile may be recovered at the earliest",
        0,
    ),
    Setting("sweep_every", 5.0, "seconds", "how often expired leases and due jobs are looked for", 0.05),
    Setting(
        "poll_every",
        2.0,
        "seconds",
        "the longest a worker waits before it asks again, whatever it was told",
        0.05,
    ),
    Setting(
        "worker_ttl",
        90.0,
        "seconds",
        "a worker that has not reported for this long does not count as there",
        1,
    ),
    Setting("long_run", 600.0, "seconds", "from here on a holder counts as a long run in conflict reports", 1),
    Setting("backoff_first", 10.0, "seconds", "delay before the second attempt", 0),
    Setting("backoff_factor", 2.0, "factor", "each further delay is this many times the one before", 1, 100),
    Setting("backoff_most", 900.0, "seconds", "the longest delay between attempts", 0),
    Setting(
        "clock_tolerance",
        5.0,
        "seconds",
        "how far the store's clock may stray from a sweeper's before expiry pauses",
        0.1,
    ),
    Setting("strict_tasks", 0.0, "0 or 1", "refuse jobs whose task no worker of the pool has ever offered", 0, 1),
    Setting(
        "keep_jobs",
        30.0,
        "days",
        "finished jobs and their runs are deleted after this; 0 keeps them for ever",
        0,
        MOST_DAYS,
    ),
    Setting("keep_events", 90.0, "days", "events are deleted after this; 0 keeps them for ever", 0, MOST_DAYS),
    Setting(
        "data_dir", "leasekeeper-data", "folder", "profiles without a directory of their own, and evidence of runs"
    ),
    Setting("browser", "", "path", "the browser to run; empty: Playwright's own, chromium, or google-chrome"),
    Setting("browser_args", "", "arguments", "more arguments for the browser, separated by spaces"),
    Setting("launch_together", 0.0, "browsers", "how many a worker starts at one moment; 0: as many as cores", 0, 1000),
    Setting("task_timeout", 1800.0, "seconds", "how long a task may take that says nothing else; 0: for ever", 0),
    Setting("stop_grace", 30.0, "seconds", "how long running tasks may go on after a worker was asked to stop", 0),
    Setting("close_after", 10.0, "seconds", "how long a browser may take to close before it is interrupted", 0.1),
    Setting("warm_runs", 20.0, "runs", "how many runs one browser may serve before it is closed; 1: never warm", 1),
    Setting("warm_age", 600.0, "seconds", "how old a browser may be and still take another run", 0),
    Setting("warm_idle", 0.0, "seconds", "how long a completed run waits, unsettled, for a next one to take over", 0),
    Setting(
        "keep_evidence", 30.0, "days", "evidence files are deleted after this; 0 keeps them for ever", 0, MOST_DAYS
    ),
    Setting("keep_evidence_mb", 10240.0, "MB", "the oldest evidence goes when there is more than this; 0: no bound", 0),
    Setting(
        "webhook_secret",
        "",
        "whsec_…",
        "signs webhooks; several, separated by spaces, while one replaces another; empty: none are sent",
    ),
    Setting(
        "webhook_networks",
        "",
        "networks",
        "where webhooks may go besides public addresses: 10.0.0.0/8 127.0.0.1, separated by spaces",
    ),
    Setting("webhook_timeout", 15.0, "seconds", "how long a receiver may take to answer a webhook", 0.1, 300),
    Setting("probe_url", "", "URL", "asked through a profile's proxy before and after each run; empty: no probe"),
)

_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserConfig:
    """How a worker runs browsers, and where it keeps what they leave behind."""

    data_dir: str
    browser: str | None
    browser_args: tuple[str, ...]
    launch_together: int
    task_timeout: timedelta | None
    stop_grace: timedelta
    close_after: timedelta
    warm_runs: int
    warm_age: timedelta
    warm_idle: timedelta
    keep_evidence: timedelta | None
    keep_evidence_bytes: int | None
    probe_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig:
    """How webhooks are signed and where they may go. The secret shows in no repr."""

    secret: str = field(repr=False)
    networks: str
    timeout: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The settings in force, parsed."""

    store: str
    policy: Policy
    retention: Retention
    sweep_every: timedelta
    poll_every: timedelta
    clock_tolerance: timedelta
    browsers: BrowserConfig
    webhooks: WebhookConfig


def load(environ: Mapping[str, str] | None = None, /, **overrides: str | float) -> Config:
    """Settings from the environment, then from keyword arguments. Every wrong one is named at once."""
    environ = os.environ if environ is None else environ
    problems: list[Problem] = []
    values: dict[str, str | float | None] = {}
    for setting in SETTINGS:
        raw = overrides.get(setting.name, environ.get(PREFIX + setting.name.upper()))
        values[setting.name] = _parse(setting, raw, problems)
    unknown = [name for name in overrides if name not in _BY_NAME]
    problems += [Problem(name, f"no such setting; there are: {', '.join(_BY_NAME)}") for name in unknown]
    problems += _misspelt(environ)
    if not values["data_dir"]:
        problems.append(Problem(PREFIX + "DATA_DIR", "must name a folder: Leasekeeper deletes old evidence in it"))
    renew, stop, ttl = (_number(values, name) for name in ("renew_every", "holder_stops_after", "lease_ttl"))
    if not problems and not renew < stop < ttl:
        problems.append(
            Problem(
                PREFIX + "HOLDER_STOPS_AFTER",
                "must lie between renew_every and lease_ttl: a holder must stop itself before its lease can end",
            )
        )
    if problems:
        raise InputError("a setting is wrong", problems)
    return _config(values)


def _misspelt(environ: Mapping[str, str]) -> list[Problem]:
    """Variables that are nearly a setting: what they were meant to say would be lost. Others may be anybody's."""
    known = [PREFIX + name.upper() for name in _BY_NAME]
    strange = [name for name in environ if name.startswith(PREFIX) and name not in known]
    near = ((name, nearest(name, known, NEARLY)) for name in strange)
    return [Problem(name, f"no such setting; did you mean {meant}?") for name, meant in near if meant]


def _parse(setting: Setting, raw: str | float | None, problems: list[Problem]) -> str | float | None:
    if raw is None or isinstance(setting.default, str):
        return setting.default if raw is None else str(raw)
    try:
        number = float(raw)
    except ValueError:
        number = float("nan")
    if not setting.least <= number <= setting.most:
        problems.append(
            Problem(
                PREFIX + setting.name.upper(),
                f"{_shown(raw)} is not a number ({setting.unit}) from {setting.least:g} to {setting.most:g}",
            )
        )
        return setting.default
    return number


def _shown(raw: str | float) -> str:
    """The value as it was given, unless it is a secret that was meant for another setting."""
    return "a secret" if str(raw).startswith("whsec_") else repr(raw)


def _number(values: Mapping[str, str | float | None], name: str) -> float:
    return float(values[name] or 0.0)


def _config(values: Mapping[str, str | float | None]) -> Config:
    def seconds(name: str) -> timedelta:
        return timedelta(seconds=_number(values, name))

    def days(name: str) -> timedelta | None:
        return timedelta(days=_number(values, name)) or None

    policy = Policy(
        timing=Timing(
            ttl=seconds("lease_ttl"),
            renew_every=seconds("renew_every"),
            holder_stops_after=seconds("holder_stops_after"),
            lock_delay=seconds("lock_delay"),
        ),
        backoff=Backoff(
            first=seconds("backoff_first"),
            factor=_number(values, "backoff_factor"),
            most=seconds("backoff_most"),
        ),
        long_run=seconds("long_run"),
        worker_ttl=seconds("worker_ttl"),
        strict_tasks=bool(_number(values, "strict_tasks")),
    )
    return Config(
        store=str(values["store"]),
        policy=policy,
        retention=Retention(jobs=days("keep_jobs"), events=days("keep_events")),
        sweep_every=seconds("sweep_every"),
        poll_every=seconds("poll_every"),
        clock_tolerance=seconds("clock_tolerance"),
        browsers=_browsers(values),
        webhooks=WebhookConfig(
            secret=str(values["webhook_secret"]),
            networks=str(values["webhook_networks"]),
            timeout=seconds("webhook_timeout"),
        ),
    )


def _browsers(values: Mapping[str, str | float | None]) -> BrowserConfig:
    def seconds(name: str) -> timedelta:
        return timedelta(seconds=_number(values, name))

    return BrowserConfig(
        data_dir=str(values["data_dir"]),
        browser=str(values["browser"]) or None,
        browser_args=tuple(str(values["browser_args"]).split()),
        launch_together=int(_number(values, "launch_together")) or os.cpu_count() or 1,
        task_timeout=seconds("task_timeout") or None,
        stop_grace=seconds("stop_grace"),
        close_after=seconds("close_after"),
        warm_runs=int(_number(values, "warm_runs")),
        warm_age=seconds("warm_age"),
        warm_idle=seconds("warm_idle"),
        keep_evidence=timedelta(days=_number(values, "keep_evidence")) or None,
        keep_evidence_bytes=int(_number(values, "keep_evidence_mb") * 1_000_000) or None,
        probe_url=str(values["probe_url"]) or None,
    )
