"""Parses fleet files: the fields of fleet.yaml as tables, and a file → `Fleet`.

Reads one file only; `core.fleet.check_fleet` checks whether its references exist.
"""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from leasekeeper.core.accounts import Account, Limit, Proxy, Routing
from leasekeeper.core.browsers import DRIVERS, LAUNCHER, NULL, driver_fault
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import ID_PATTERN, ID_RULE, AccountId, LauncherId, ProfileId, ProxyId
from leasekeeper.core.launchers import VENDORS, Launcher, vendor_fault
from leasekeeper.core.profiles import ManualUse, Profile, ReleasePolicy
from leasekeeper.errors import InputError, nearest
from leasekeeper.wire.document import read_yaml
from leasekeeper.wire.jobs import WEB_ADDRESS, labels, notes
from leasekeeper.wire.kinds import ID, Choice, Flag, Integer, Problems, Text
from leasekeeper.wire.launcher_calls import ADDRESS, CALLS, check_address, check_launcher_profile
from leasekeeper.wire.records import DRAFT, Field, MapOf, Record, at, table
from leasekeeper.wire.schedules import MAX_SCHEDULES, SCHEDULE_ID, SELECT, schedule_from, schedule_record

FLEET_VERSION: Final = 1

MAX_FLEET_BYTES: Final = 64 * 1024 * 1024
MAX_RECORDS: Final = 1_000_000
MAX_ACTIVE_RUNS: Final = 1_000
MAX_POOL_LEASES: Final = 1_000_000
MAX_PATH_LENGTH: Final = 4_096
MAX_SNAPSHOTS: Final = 1_000
MAX_SIZE_MB: Final = 1_000_000

_SERVER: Final = "scheme://host:port, with http, https or socks5 as the scheme"
_CREDENTIALS: Final = "env:NAME, file:PATH or secret:NAME: where the secret is, never the secret itself"
_CREDENTIALS_PATTERN: Final = f"env:[A-Za-z_][A-Za-z0-9_]*|file:.+|secret:{ID_PATTERN}"
_TOKEN: Final = "env:NAME or file:PATH: where the token is, never the token itself"  # noqa: S105 - this rule's text
_TOKEN_PATTERN: Final = "env:[A-Za-z_][A-Za-z0-9_]*|file:.+"  # noqa: S105 - this pattern
_STORE: Final = "s3://BUCKET/PREFIX, file:///FOLDER or server"
_STORE_PATTERN: Final = "s3://[^/ ]+(/.*)?|file:///.+|server"
_LANGUAGE_PATTERN: Final = "[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,8}"
_TIMEZONE_PATTERN: Final = "[A-Za-z0-9_+/-]+"
_WINDOW_PATTERN: Final = "[1-9][0-9]{1,4}x[1-9][0-9]{1,4}"
_QUOTE: Final = "; put it in quotes"


def _check_server(text: str) -> str | None:
    from urllib.parse import urlsplit

    if "@" in text:
        elsewhere = "store them elsewhere and write credentials: env:NAME, file:PATH or secret:NAME"
        return f"must not hold a user or password: {elsewhere}"
    try:
        parts = urlsplit(text)
        whole = bool(parts.hostname and parts.port)
    except ValueError:
        return f"must be {_SERVER}"
    fits = parts.scheme in ("http", "https", "socks5") and whole and text.isascii() and " " not in text
    return None if fits and not (parts.path.strip("/") or parts.query or parts.fragment) else f"must be {_SERVER}"


@cache
def _timezones() -> frozenset[str]:
    from zoneinfo import available_timezones

    return frozenset(available_timezones())


def _check_timezone(text: str) -> str | None:
    return timezone_fault(text, _timezones())


def timezone_fault(text: str, known: frozenset[str]) -> str | None:
    """Why a time zone is refused, by the list of known ones; without such a list nothing is refused."""
    if not known or text in known:
        return None
    near = nearest(text, known)
    return "must be a time zone as Europe/Berlin" + (f"; did you mean {near}?" if near else "")


def _check_path(text: str) -> str | None:
    try:
        Path(text).expanduser()
    except RuntimeError:
        return "begins with '~', but that home directory is not known"
    return None


_TIMEZONE: Final = Text("a time zone as Europe/Berlin", maximum=64, pattern=_TIMEZONE_PATTERN, check=_check_timezone)

PROXY: Final = Record(
    [
        Field(
            name="server",
            kind=Text(_SERVER, maximum=512, check=_check_server),
            doc="the network exit",
            required=True,
        ),
        Field(
            name="region",
            kind=Text("text of 1 to 128 printable characters", maximum=128),
            doc="the region of its exit, as jobs expect it",
        ),
        Field(
            name="credentials",
            kind=Text(_CREDENTIALS, maximum=MAX_PATH_LENGTH, pattern=_CREDENTIALS_PATTERN),
            doc="where user:password is kept",
        ),
    ],
    of=Proxy,
)

LAUNCHER_RECORD: Final = Record(
    [
        Field(
            name="driver",
            kind=Text(f"a launcher's driver: {', '.join(VENDORS)}", maximum=ID.maximum, check=vendor_fault),
            doc="which launcher it is",
            required=True,
        ),
        Field(
            name="url",
            kind=Text(ADDRESS, maximum=512, check=check_address),
            doc="the URL of its API; absent: the vendor's usual one on this machine",
        ),
        Field(
            name="token",
            kind=Text(_TOKEN, maximum=MAX_PATH_LENGTH, pattern=_TOKEN_PATTERN),
            doc="where the token of its API is kept",
            into="api_token",
        ),
        Field(
            name="folder", kind=Text("text of 1 to 256 printable characters", maximum=256), doc="Multilogin's folder id"
        ),
        Field(
            name="max_running",
            kind=Integer(1, MAX_POOL_LEASES),
            doc="how many browsers the plan allows at once; becomes the limit of its profiles' pool",
        ),
        Field(
            name="calls_per_minute",
            kind=Integer(1, 100_000),
            doc="how many calls its API allows, shared by all workers of the store",
        ),
        Field(name="start_timeout_seconds", kind=Integer(1, 600), doc="how long a start may take"),
        Field(
            name="calls",
            kind=CALLS,
            doc="the API of a launcher of driver http; of a vendor, calls in place of its driver's",
        ),
    ],
    of=Launcher,
)

CANARY: Final = Record(
    [
        Field(name="url", kind=WEB_ADDRESS, doc="the page that is opened", required=True, into="canary_url"),
        Field(
            name="selector",
            kind=Text("a CSS selector of 1 to 1024 printable characters", maximum=1024),
            doc="what is on the page only when logged in",
            required=True,
            into="canary_selector",
        ),
    ],
    of=Account,
)

ACCOUNT: Final = Record(
    [
        Field(name="routing", kind=Choice(Routing), doc="what runs one at a time"),
        Field(name="url", kind=WEB_ADDRESS, doc="where a person logs in"),
        Field(name="login_canary", kind=CANARY, doc="how a run checks at its end whether it is still logged in"),
        labels("account"),
        notes("account"),
    ],
    of=Account,
)

_DRIVER: Final = Text(f"a driver: {', '.join(DRIVERS)}", maximum=ID.maximum, pattern=ID.pattern, check=driver_fault)

PROFILE: Final = Record(
    [
        Field(
            name="account",
            kind=ID,
            doc="the account it belongs to; cannot be changed",
            required=True,
            into="account_id",
        ),
        Field(name="pool", kind=ID, doc="the workers and the limit it falls under"),
        Field(name="tier", kind=ID, doc="its quality, in your own words: to filter by"),
        Field(name="driver", kind=_DRIVER, doc="what opens its browser"),
        Field(
            name="user_data_dir",
            kind=Text(
                f"a path of at most {MAX_PATH_LENGTH} printable characters",
                maximum=MAX_PATH_LENGTH,
                check=_check_path,
            ),
            doc="the browser's directory; a relative path is relative to the fleet file",
        ),
        Field(name="proxy", kind=ID, doc="the proxy it always uses", into="proxy_id"),
        Field(name="launcher", kind=ID, doc="the launcher that has the profile and opens it", into="launcher_id"),
        Field(
            name="launcher_profile",
            kind=Text("text of 1 to 512 printable characters", maximum=512, check=check_launcher_profile),
            doc="the id that its launcher knows it by; for driver cdp, the DevTools URL",
        ),
        Field(
            name="language",
            kind=Text("a language as en-US", maximum=64, pattern=_LANGUAGE_PATTERN),
            doc="the browser's language",
        ),
        Field(name="timezone", kind=_TIMEZONE, doc="the browser's time zone"),
        Field(
            name="window",
            kind=Text("a size as 1280x800", maximum=11, pattern=_WINDOW_PATTERN),
            doc="the browser's window",
        ),
        Field(name="max_active_runs", kind=Integer(1, MAX_ACTIVE_RUNS), doc="how many runs may share it"),
        Field(name="disposable", kind=Flag(), doc="disposable: its state need not be kept, so any job may share it"),
        Field(name="warm", kind=Flag(), doc="false: every run gets a browser of its own, none is handed over"),
        Field(name="record", kind=Flag(), doc="true: keep a recording of every run with its evidence"),
        Field(
            name="release_policy",
            kind=Choice(ReleasePolicy),
            doc="what becomes of it if a worker vanishes",
        ),
        Field(name="manual_use", kind=Choice(ManualUse), doc="what to do if it was used outside a lease"),
        Field(
            name="keep_snapshots",
            kind=Integer(1, MAX_SNAPSHOTS),
            doc="how many of its newest snapshots are kept; also one a day for a week, and the last that was logged in",
        ),
        Field(
            name="max_size_mb",
            kind=Integer(1, MAX_SIZE_MB),
            doc="above this size of its directory there is a warning, and its caches are trimmed",
        ),
        labels("profile"),
        notes("profile"),
    ],
    of=Profile,
)


SCHEDULE: Final = schedule_record(_TIMEZONE)


def _by_id(what: str, record: Record) -> MapOf:
    key = Text(f"an id: {ID_RULE}", maximum=ID.maximum, pattern=ID.pattern)
    return MapOf(f"at most {MAX_RECORDS:,} {what} by id", key, record, MAX_RECORDS)


FLEET: Final = Record(
    [
        Field(
            name="version",
            kind=Integer(FLEET_VERSION, FLEET_VERSION),
            doc="the version of this format",
            into="",
        ),
        Field(
            name="profile_store",
            kind=Text(_STORE, maximum=MAX_PATH_LENGTH, pattern=_STORE_PATTERN),
            doc="where snapshots of profiles are kept, so that any machine can open them; absent: they stay at home",
        ),
        Field(name="proxies", kind=_by_id("proxies", PROXY), doc="network exits"),
        Field(
            name="launchers",
            kind=_by_id("launchers", LAUNCHER_RECORD),
            doc="third-party programs that store profiles and open their browsers",
        ),
        Field(name="accounts", kind=_by_id("accounts", ACCOUNT), doc="the identities to operate"),
        Field(name="profiles", kind=_by_id("profiles", PROFILE), doc="the browser environments of the accounts"),
        Field(
            name="limits",
            kind=MapOf(
                f"pools, each with a whole number from 1 to {MAX_POOL_LEASES}",
                ID,
                Integer(1, MAX_POOL_LEASES),
                MAX_RECORDS,
            ),
            doc="the maximum number of leases of a pool at once: a vendor's plan, usually",
        ),
        Field(
            name="schedules",
            kind=MapOf(f"at most {MAX_SCHEDULES:,} schedules by id", SCHEDULE_ID, SCHEDULE, MAX_SCHEDULES),
            doc="jobs that are created by a schedule, as in cron",
        ),
    ]
)


def parse_fleet(data: object, *, folder: str | None = None) -> Fleet:
    """A fleet from plain types, or from the text of a fleet file. Raises InputError that names every fault.

    Relative directories start at `folder`, else where the program runs.
    """
    if isinstance(data, str):
        data = _not_empty(read_yaml(data, "the fleet"), "the fleet")
    problems = Problems(hint=_QUOTE)
    if isinstance(data, Mapping) and not _is_known_version(data):
        problems.add(
            "version",
            f"must be {FLEET_VERSION}, the one this program knows; for a newer one upgrade it",
        )
        values: dict[str, Any] = {}
    else:
        values = FLEET.read(data, "", problems)
        _refuse_unquoted_null(data, problems)
    problems.raise_any("the fleet is not acceptable; nothing was applied")
    return _fleet(values, folder or os.curdir)


def _refuse_unquoted_null(data: object, problems: Problems) -> None:
    """A field without a value counts as absent. But `driver: null` probably means the driver of that name."""
    profiles = data.get("profiles") if isinstance(data, Mapping) else None
    for name, profile in profiles.items() if isinstance(profiles, Mapping) else ():
        if isinstance(profile, Mapping) and profile.get("driver", NULL) is None:
            problems.add(at(at("profiles", name), "driver"), f'has no value; for the driver {NULL} write "{NULL}"')


def load_fleet(path: str | os.PathLike[str]) -> Fleet:
    """The fleet of a YAML file."""
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as file:
            raw = file.read(MAX_FLEET_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_FLEET_BYTES:
        raise InputError(f"{name} is longer than {MAX_FLEET_BYTES // 1024**2} MiB: split it, and apply the parts")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8: save the file as UTF-8") from None
    data = _not_empty(read_yaml(text, name), name)
    return parse_fleet(data, folder=str(Path(name).parent))


def fleet_schema() -> dict[str, Any]:
    """The JSON Schema of a fleet file."""
    return {
        "$schema": DRAFT,
        "$id": f"urn:leasekeeper:fleet:{FLEET_VERSION}",
        "title": "Leasekeeper fleet",
        "description": "Accounts, profiles, proxies, launchers, limits and schedules, as declared in fleet.yaml.",
        **FLEET.schema(),
    }


def fleet_table() -> str:
    """The fields of a fleet file as Markdown tables, one per record."""
    parts = [
        ("fleet.yaml", FLEET),
        ("proxies.ID", PROXY),
        ("launchers.ID", LAUNCHER_RECORD),
        ("launchers.ID.calls", CALLS),
        *((f"launchers.ID.calls.{field.name}", field.kind) for field in CALLS.table if isinstance(field.kind, Record)),
        ("accounts.ID", ACCOUNT),
        ("accounts.ID.login_canary", CANARY),
        ("profiles.ID", PROFILE),
        ("schedules.ID", SCHEDULE),
        ("schedules.ID.select", SELECT),
    ]
    return "\n".join(f"**{title}**\n\n{table(record.rows())}" for title, record in parts)


def _not_empty(data: object, name: str) -> object:
    if data is None:
        raise InputError(f"{name} is empty: declare accounts and profiles, or delete it")
    if not isinstance(data, Mapping):
        raise InputError(f"{name} must hold a mapping with {', '.join(f.name for f in FLEET.table)}")
    return data


def _is_known_version(data: Mapping[Any, Any]) -> bool:
    version = data.get("version")
    return version is None or (version == FLEET_VERSION and not isinstance(version, bool))


def _fleet(values: dict[str, Any], folder: str) -> Fleet:
    def records(name: str) -> dict[str, dict[str, Any]]:
        return values.get(name) or {}

    launchers = {key: Launcher(launcher_id=LauncherId(key), **value) for key, value in records("launchers").items()}
    profiles = {key: _profile(key, value, folder) for key, value in records("profiles").items()}
    limits = {key: Limit(pool=key, max_leases=maximum) for key, maximum in (values.get("limits") or {}).items()}
    return Fleet(
        launchers=launchers,
        proxies={key: Proxy(proxy_id=ProxyId(key), **value) for key, value in records("proxies").items()},
        accounts={key: _account(key, value) for key, value in records("accounts").items()},
        profiles=profiles,
        limits={**_plan_limits(launchers, profiles), **limits},
        schedules={key: schedule_from(key, value) for key, value in records("schedules").items()},
        profile_store=values.get("profile_store"),
    )


def _account(account_id: str, values: dict[str, Any]) -> Account:
    others = {name: value for name, value in values.items() if name != "login_canary"}
    return Account(account_id=AccountId(account_id), **others, **(values.get("login_canary") or {}))


def _plan_limits(launchers: Mapping[str, Launcher], profiles: Mapping[str, Profile]) -> dict[str, Limit]:
    """The browsers that a launcher's plan allows, as the limit of the pool that all its profiles here are in."""
    pools: dict[str, set[str]] = {}
    for profile in profiles.values():
        if profile.launcher_id is not None:
            pools.setdefault(profile.launcher_id, set()).add(profile.pool)
    return {
        pool: Limit(pool=pool, max_leases=launcher.max_running)
        for key, launcher in launchers.items()
        if launcher.max_running is not None and len(pools.get(key, ())) == 1
        for pool in pools[key]
    }


def _profile(profile_id: str, values: dict[str, Any], folder: str) -> Profile:
    directory = values.get("user_data_dir")
    if directory is not None:
        # Not resolved: a symbolic link is resolved on the machine that opens the browser.
        absolute = Path(folder, Path(directory).expanduser()).absolute()
        values = {**values, "user_data_dir": os.path.normpath(absolute)}
    if values.get("launcher_id") is not None:
        values = {"driver": LAUNCHER, **values}
    return Profile(profile_id=ProfileId(profile_id), **values)
