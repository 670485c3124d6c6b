"""The settings in force. A setting of `settings_table` is read from the environment as LEASEKEEPER_<NAME>, else from
the settings file by its name.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from leasekeeper import settings_file
from leasekeeper.core.browsers import DRIVERS, driver_fault
from leasekeeper.core.jobs import Backoff
from leasekeeper.core.leases import Timing
from leasekeeper.core.policy import Policy, Retention
from leasekeeper.errors import InputError, Problem, nearest
from leasekeeper.local_tokens import read_local_token
from leasekeeper.settings_table import PREFIX, SETTINGS, SWITCH, Setting

SIMILARITY: Final = 0.9
# Variables that Leasekeeper itself sets, for its own processes.
_OWN: Final = frozenset({settings_file.VARIABLE, PREFIX + "KEEPER", PREFIX + "DEMO"})
_LOG = logging.getLogger(__name__)
_warned: set[str] = set()


_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretConfig:
    """Where the keys of stored secrets are: in a setting, or in a file. No repr shows them."""

    keys: str = field(default="", repr=False)
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserConfig:
    """How a worker runs browsers, and where profiles and evidence are stored."""

    data_dir: str
    drivers: tuple[str, ...]
    browser: str | None
    browser_args: tuple[str, ...]
    launch_together: int
    headless_without_display: bool
    task_timeout: timedelta | None
    stop_grace: timedelta
    close_after: timedelta
    max_message_bytes: int
    run_memory_bytes: int | None
    playwright_memory_bytes: int | None
    warm_runs: int
    warm_age: timedelta
    warm_idle: timedelta
    machine: str
    evidence: str
    server: str | None
    token: str = field(repr=False)
    server_ca: str
    keep_evidence: timedelta | None
    keep_evidence_bytes: int | None
    profile_store: str
    unencrypted_snapshots: bool
    probe_url: str | None
    secrets: SecretConfig = SecretConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig:
    """How webhooks are signed and where they may go. The secret is not in the repr."""

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
    secrets: SecretConfig = SecretConfig()
    metrics_open: bool = False
    log_format: str = "auto"
    token: str = field(default="", repr=False)
    store_ca: str = ""
    server_host: str = "127.0.0.1"
    server_port: int = 7070


class Source(StrEnum):
    """Where the value of a setting comes from. A later one wins."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    ARGUMENT = "argument"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """One setting in force. `value` may be a secret."""

    setting: Setting
    value: str | float | None = field(repr=False)
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings in force, in the order of the table, and the settings file that was read."""

    rows: tuple[Effective, ...]
    file: Path | None


def load(environ: Mapping[str, str] | None = None, /, **overrides: str | float) -> Config:
    """Keyword arguments, then the environment, then the settings file, then defaults. See `effective`."""
    return _config({row.setting.name: row.value for row in effective(environ, **overrides).rows})


def effective(environ: Mapping[str, str] | None = None, /, **overrides: str | float) -> Settings:
    """Each setting with its source. Raises InputError that names every wrong setting."""
    environ = os.environ if environ is None else environ
    store = overrides.get("store", environ.get(PREFIX + "STORE"))
    file = settings_file.find(environ, str(store) if store else None)
    problems: list[Problem] = []
    from_file = _read_file(file, problems) if file is not None else {}
    rows = {}
    for setting in SETTINGS:
        source, raw, where = Source.DEFAULT, None, setting.variable
        if setting.name in overrides:
            source, raw = Source.ARGUMENT, overrides[setting.name]
        elif setting.variable in environ:
            source, raw = Source.ENVIRONMENT, environ[setting.variable]
        elif setting.name in from_file:
            source, raw, where = Source.FILE, from_file[setting.name], f"{file}: {setting.name}"
        value = _parse(setting, raw, where, problems)
        rows[setting.name] = Effective(setting=setting, value=value, source=source)
    unknown = [name for name in overrides if name not in _BY_NAME]
    problems += [Problem(name, f"no such setting; there are: {', '.join(_BY_NAME)}") for name in unknown]
    problems += _misspelt(environ)
    problems += _contradictions(rows, any_before=bool(problems))
    if problems:
        raise InputError("a setting is wrong", problems)
    if not rows["token"].value:
        # The token of a server that this user started on this machine.
        found = read_local_token(str(rows["store"].value), environ)
        rows["token"] = replace(rows["token"], value=found, source=Source.FILE if found else Source.DEFAULT)
    rows["data_dir"] = _placed(rows["data_dir"], str(rows["store"].value), file)
    return Settings(rows=tuple(rows.values()), file=file)


def _contradictions(rows: Mapping[str, Effective], *, any_before: bool) -> list[Problem]:
    values = {name: row.value for name, row in rows.items()}
    problems = []
    if not values["data_dir"]:
        problems.append(Problem(PREFIX + "DATA_DIR", "must name a folder: Leasekeeper deletes old evidence in it"))
    names = str(values["drivers"]).split()
    faults = [fault for name in names if (fault := driver_fault(name)) is not None]
    problems += [Problem(PREFIX + "DRIVERS", fault) for fault in faults]
    if not names:
        problems.append(Problem(PREFIX + "DRIVERS", f"must name a driver: {', '.join(DRIVERS)}"))
    renew, stop, ttl = (_number(values, name) for name in ("renew_every", "holder_stops_after", "lease_ttl"))
    if not any_before and not problems and not renew < stop < ttl:
        problems.append(
            Problem(
                PREFIX + "HOLDER_STOPS_AFTER",
                "must be between renew_every and lease_ttl: a holder must stop before its lease can expire",
            )
        )
    timeout, chosen = _number(values, "store_timeout"), rows["store_timeout"].source is not Source.DEFAULT
    if not any_before and not problems and chosen and 2 * timeout >= stop:
        problems.append(
            Problem(
                PREFIX + "STORE_TIMEOUT",
                f"must be under half of holder_stops_after ({stop:g}): else one call that hangs may cost a lease",
            )
        )
    return problems


def _placed(data_dir: Effective, store: str, file: Path | None) -> Effective:
    """The data directory as an absolute path that does not depend on the working directory."""
    folder = Path(str(data_dir.value)).expanduser()
    if data_dir.source is Source.DEFAULT:
        database = settings_file.sqlite_file(store)
        beside = database or file
        folder = beside.parent / folder if beside else folder
    return Effective(setting=data_dir.setting, value=str(folder.absolute()), source=data_dir.source)


def _read_file(file: Path, problems: list[Problem]) -> dict[str, str | float]:
    """The settings of the file; its paths are relative to the file."""
    from_file: dict[str, str | float] = {}
    for name, value in settings_file.read(file).items():
        setting = _BY_NAME.get(name)
        if setting is None:
            near = nearest(name, _BY_NAME)
            advice = f"; did you mean {near}?" if near else ""
            problems.append(Problem(f"{file}: {name}", f"no such setting{advice}"))
            continue
        switch = setting.unit == SWITCH and isinstance(value, bool)
        if isinstance(setting.default, str) and isinstance(value, str):
            from_file[name] = _anchored(name, value, file.parent)
        elif (
            isinstance(setting.default, float) and isinstance(value, int | float) and isinstance(value, bool) == switch
        ):
            from_file[name] = float(value)
        else:
            kind = "text in quotes" if isinstance(setting.default, str) else f"a number ({setting.unit})"
            problems.append(Problem(f"{file}: {name}", f"must be {kind}"))
    return from_file


def _anchored(name: str, value: str, folder: Path) -> str:
    """A path in the file is relative to the file."""
    if name == "store" and settings_file.sqlite_file(value) is not None:
        return f"sqlite:///{settings_file.anchored(value.removeprefix('sqlite:///'), folder)}"
    if (name == "data_dir" and value) or (name == "browser" and "/" in value):
        return settings_file.anchored(value, folder)
    return value


def _misspelt(environ: Mapping[str, str]) -> list[Problem]:
    """Variables whose name is nearly a setting are an error. Other unknown ones are logged once."""
    known = [setting.variable for setting in SETTINGS]
    strange = [name for name in environ if name.startswith(PREFIX) and name not in known and name not in _OWN]
    near = {name: nearest(name, known, SIMILARITY) for name in strange}
    for name in strange:
        if near[name] is None and name not in _warned:
            _warned.add(name)
            _LOG.warning("%s is not a setting, and is ignored", name)
    return [Problem(name, f"no such setting; did you mean {meant}?") for name, meant in near.items() if meant]


def _parse(setting: Setting, raw: str | float | None, where: str, problems: list[Problem]) -> str | float | None:
    if raw is None or isinstance(setting.default, str):
        return setting.default if raw is None else str(raw)
    try:
        number = float(raw)
    except ValueError:
        number = float("nan")
    if not setting.minimum <= number <= setting.maximum:
        problems.append(
            Problem(
                where,
                f"{_printable(raw)} is not a number ({setting.unit}) from {setting.minimum:g} to {setting.maximum:g}",
            )
        )
        return setting.default
    return number


def _printable(raw: str | float) -> str:
    """The value for an error message, unless it looks like a secret that was meant for another setting."""
    return "a secret" if str(raw).startswith(("whsec_", "lkey_", "lk_")) else repr(raw)


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
            renew_at_least_every=seconds("renew_at_least_every"),
            holder_stops_after=seconds("holder_stops_after"),
            lock_delay=seconds("lock_delay"),
        ),
        backoff=Backoff(
            first=seconds("backoff_first"),
            factor=_number(values, "backoff_factor"),
            max=seconds("backoff_max"),
        ),
        long_run=seconds("long_run"),
        worker_ttl=seconds("worker_ttl"),
        strict_tasks=bool(_number(values, "strict_tasks")),
        store_timeout=seconds("store_timeout"),
        schedule_grace=seconds("schedule_grace"),
        home_wait=seconds("home_wait"),
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
        secrets=_secrets(values),
        metrics_open=bool(_number(values, "metrics_open")),
        log_format=str(values["log_format"]),
        token=str(values["token"]),
        store_ca=str(values["store_ca"]),
        server_host=str(values["server_host"]),
        server_port=int(_number(values, "server_port")),
    )


def _browsers(values: Mapping[str, str | float | None]) -> BrowserConfig:
    def seconds(name: str) -> timedelta:
        return timedelta(seconds=_number(values, name))

    return BrowserConfig(
        data_dir=str(values["data_dir"]),
        drivers=tuple(str(values["drivers"]).split()),
        browser=str(values["browser"]) or None,
        browser_args=tuple(str(values["browser_args"]).split()),
        launch_together=int(_number(values, "launch_together")) or os.cpu_count() or 1,
        headless_without_display=bool(_number(values, "headless_without_display")),
        task_timeout=seconds("task_timeout") or None,
        stop_grace=seconds("stop_grace"),
        close_after=seconds("close_after"),
        max_message_bytes=int(_number(values, "max_message_mb") * 1_000_000),
        run_memory_bytes=int(_number(values, "run_memory_mb") * 1_000_000) or None,
        playwright_memory_bytes=int(_number(values, "playwright_memory_mb") * 1_000_000) or None,
        warm_runs=int(_number(values, "warm_runs")),
        warm_age=seconds("warm_age"),
        warm_idle=seconds("warm_idle"),
        machine=str(values["machine"]).strip(),
        evidence=str(values["evidence"]).strip(),
        server=store if (store := str(values["store"])).startswith(("https://", "http://")) else None,
        token=str(values["token"]),
        server_ca=str(values["store_ca"]),
        keep_evidence=timedelta(days=_number(values, "keep_evidence")) or None,
        keep_evidence_bytes=int(_number(values, "keep_evidence_mb") * 1_000_000) or None,
        profile_store=str(values["profile_store"]).strip(),
        unencrypted_snapshots=bool(_number(values, "unencrypted_snapshots")),
        probe_url=str(values["probe_url"]) or None,
        secrets=_secrets(values),
    )


def _secrets(values: Mapping[str, str | float | None]) -> SecretConfig:
    return SecretConfig(keys=str(values["secret_key"]), file=str(values["secret_key_file"]))
