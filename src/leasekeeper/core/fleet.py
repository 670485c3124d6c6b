"""A fleet as declared, and the difference between two of them. Runtime state is not part of a fleet."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from leasekeeper.core.accounts import Account, Limit, Proxy
from leasekeeper.core.browsers import LAUNCHER, driver_fault
from leasekeeper.core.ids import ID_RULE, is_id
from leasekeeper.core.launchers import Launcher, missing_settings, stop_missing
from leasekeeper.core.profiles import Profile
from leasekeeper.core.schedules import HIDDEN, Schedule, configured_fields
from leasekeeper.errors import InputError, Problem, VersionConflict

# The one setting of a fleet, and the `what` of a change of it.
STORE: Final = "profile_store"
_RUNTIME_FIELDS = frozenset(
    {"paused", "pause_note", "ban_status", "version", "trouble", "trouble_detail", "trouble_at", "asked", "ask_at"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Accounts, profiles, proxies, launchers, limits and schedules, each by id.

    `profile_store` is where snapshots of profiles are kept: a URL, or `server`. None: profiles stay on their machines.
    """

    accounts: Mapping[str, Account] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    proxies: Mapping[str, Proxy] = field(default_factory=dict)
    launchers: Mapping[str, Launcher] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    profile_store: str | None = None


class ChangeKind(StrEnum):
    ADD = "add"
    CHANGE = "change"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One line of a difference: `what` is account, profile, proxy, launcher, limit, schedule, or the one setting
    `profile_store`."""

    kind: ChangeKind
    what: str
    id: str
    fields: Mapping[str, tuple[object, object]] = field(default_factory=dict)


Record = Account | Profile | Proxy | Launcher | Limit | Schedule


def configured(record: Record) -> dict[str, object]:
    """The fields of a record that a fleet file owns."""
    if isinstance(record, Schedule):
        return configured_fields(record)
    return {f.name: getattr(record, f.name) for f in fields(record) if f.name not in _RUNTIME_FIELDS}


def tag_of(fleet: Fleet) -> str:
    """A hash of what a fleet declares: it changes as soon as any declaration does."""
    declared = {
        kind.name: {record_id: configured(record) for record_id, record in value.items()}
        if isinstance(value := getattr(fleet, kind.name), Mapping)
        else value
        for kind in fields(fleet)
    }
    text = json.dumps(_plain(declared), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def check_unchanged(current: Fleet, expected: str | None) -> None:
    """Raise VersionConflict if the fleet's tag is no longer `expected`. None skips the check."""
    if expected is not None and tag_of(current) != expected:
        raise VersionConflict("the fleet has changed since it was read; nothing was applied: read it again")


def diff(current: Fleet, desired: Fleet, *, prune: bool) -> list[Change]:
    """What applying `desired` would do. Without `prune`, records that it does not name stay as they are."""
    changes = _diff_store(current.profile_store, desired.profile_store, prune=prune)
    for what, before, after in (
        ("proxy", current.proxies, desired.proxies),
        ("launcher", current.launchers, desired.launchers),
        ("account", current.accounts, desired.accounts),
        ("profile", current.profiles, desired.profiles),
        ("limit", current.limits, desired.limits),
        ("schedule", current.schedules, desired.schedules),
    ):
        changes += _diff_records(what, before, after, prune=prune)
    return changes


def _diff_store(before: str | None, after: str | None, *, prune: bool) -> list[Change]:
    if before == after or (after is None and not prune):
        return []
    if before is None or after is None:
        return [
            Change(kind=ChangeKind.REMOVE if after is None else ChangeKind.ADD, what=STORE, id=after or before or "")
        ]
    return [Change(kind=ChangeKind.CHANGE, what=STORE, id=after, fields={STORE: (before, after)})]


def _diff_records(
    what: str,
    before: Mapping[str, Record],
    after: Mapping[str, Record],
    *,
    prune: bool,
) -> list[Change]:
    changes = []
    for record_id, record in after.items():
        if record_id not in before:
            changes.append(Change(kind=ChangeKind.ADD, what=what, id=record_id))
            continue
        old, new = configured(before[record_id]), configured(record)
        changed = {name: (old[name], new[name]) for name in new if old[name] != new[name]}
        if "payload" in changed:
            changed["payload"] = (HIDDEN, HIDDEN)
        if changed:
            changes.append(Change(kind=ChangeKind.CHANGE, what=what, id=record_id, fields=changed))
    if prune:
        changes += [Change(kind=ChangeKind.REMOVE, what=what, id=gone) for gone in before if gone not in after]
    return changes


def merged(current: Fleet, desired: Fleet, *, prune: bool) -> Fleet:
    """The fleet that would be in force after applying `desired`."""
    if prune:
        return desired
    return Fleet(
        accounts={**current.accounts, **desired.accounts},
        profiles={**current.profiles, **desired.profiles},
        proxies={**current.proxies, **desired.proxies},
        launchers={**current.launchers, **desired.launchers},
        limits={**current.limits, **desired.limits},
        schedules={**current.schedules, **desired.schedules},
        profile_store=desired.profile_store or current.profile_store,
    )


def affected(current: Fleet, final: Fleet, changes: Iterable[Change]) -> list[str]:
    """Existing profiles whose readiness may have changed: their own, their proxy's or their account's settings did."""
    known = [profile_id for profile_id in current.profiles if profile_id in final.profiles]
    made = list(changes)
    if any(map(moves_snapshots, made)):
        return known
    changed = {(each.what, each.id) for each in made if each.kind is ChangeKind.CHANGE}

    def concerned(profile: Profile) -> bool:
        own = ("profile", profile.profile_id), ("account", profile.account_id), ("proxy", profile.proxy_id)
        return not changed.isdisjoint(own)

    return [profile_id for profile_id in known if concerned(final.profiles[profile_id])]


def moves_snapshots(change: Change) -> bool:
    """Whether the change moves or removes the place where snapshots are stored."""
    return change.what == STORE and change.kind is not ChangeKind.ADD


def check_fleet(
    current: Fleet, desired: Fleet, *, prune: bool, retired: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise InputError that names every impossible value, every reference to a record that is not declared, and every
    profile that would change its account.

    `retired` maps profiles that were removed to their accounts: declared again, they still belong to these.
    """
    final = merged(current, desired, prune=prune)
    problems = _value_problems(desired)
    for profile in final.profiles.values():
        where = f"profiles.{profile.profile_id}"
        if profile.account_id not in final.accounts:
            problems.append(Problem(f"{where}.account", f"no account {profile.account_id}; {_known(final.accounts)}"))
        if profile.proxy_id is not None and profile.proxy_id not in final.proxies:
            problems.append(Problem(f"{where}.proxy", f"no proxy {profile.proxy_id}; {_known(final.proxies)}"))
        fault = driver_fault(profile.driver)
        if fault is not None:
            problems.append(Problem(f"{where}.driver", fault))
        problems += _launcher_problems(profile, final)
        declared = current.profiles.get(profile.profile_id)
        before = declared.account_id if declared is not None else retired.get(profile.profile_id)
        verb = "was" if declared is None else "is"
        if before is not None and before != profile.account_id:
            problems.append(
                Problem(
                    f"{where}.account",
                    f"{verb} {before} and cannot become {profile.account_id}: a profile belongs to one "
                    "account for life; declare a new profile instead",
                )
            )
    problems += _shared_directories(final.profiles.values())
    problems += _launchers_at_fault(final)
    problems += _schedule_problems(final)
    if problems:
        raise InputError("the fleet does not hold together; nothing was applied", problems)


def _value_problems(fleet: Fleet) -> list[Problem]:
    """Faults of values: invalid ids, records under another record's id, counts below 1. Reading a fleet file finds them
    too, but a fleet need not come from a file."""
    problems: list[Problem] = []
    for kind, own_id, records in _by_kind(fleet):
        for key, record in records.items():
            if not is_id(key):
                problems.append(Problem(kind, f"{key[:200]!r} is no id: {ID_RULE}"))
            elif getattr(record, own_id) != key:
                problems.append(Problem(f"{kind}.{key}.{own_id}", f"must be {key}"))
    counts = {f"limits.{limit.pool}.max_leases": limit.max_leases for limit in fleet.limits.values()}
    counts |= {f"profiles.{each.profile_id}.max_active_runs": each.max_active_runs for each in fleet.profiles.values()}
    return problems + [Problem(where, "must be at least 1") for where, number in counts.items() if number < 1]


def _by_kind(fleet: Fleet) -> Iterator[tuple[str, str, Mapping[str, Record]]]:
    """Every kind of record of a fleet: its name there, the field of its id, the records."""
    yield "accounts", "account_id", fleet.accounts
    yield "profiles", "profile_id", fleet.profiles
    yield "proxies", "proxy_id", fleet.proxies
    yield "launchers", "launcher_id", fleet.launchers
    yield "limits", "pool", fleet.limits
    yield "schedules", "schedule_id", fleet.schedules


def _shared_directories(profiles: Iterable[Profile]) -> list[Problem]:
    """A fault for each directory that two profiles share, or that lies inside another profile's."""
    problems: list[Problem] = []
    owners: dict[str, str] = {}
    declared = {p.profile_id: p.user_data_dir for p in profiles if p.user_data_dir is not None}
    for profile_id, directory in declared.items():
        other = owners.setdefault(directory, profile_id)
        if other != profile_id:
            problems.append(Problem(f"profiles.{profile_id}.user_data_dir", f"is used by profile {other} already"))
    for profile_id, directory in declared.items():
        around = next((owners[above] for above in _folders_above(directory) if above in owners), None)
        if around is not None:
            problems.append(Problem(f"profiles.{profile_id}.user_data_dir", f"lies inside that of profile {around}"))
    return problems


def _launcher_problems(profile: Profile, final: Fleet) -> list[Problem]:
    """Faults of a profile that mixes the settings of a launcher's profile with those of a profile on our machines."""
    where, launcher_id = f"profiles.{profile.profile_id}", profile.launcher_id
    if launcher_id is None:
        given = profile.driver == LAUNCHER or profile.launcher_profile is not None
        return [Problem(f"{where}.launcher", "is missing: which launcher has the profile?")] if given else []
    problems = []
    if launcher_id not in final.launchers:
        problems.append(Problem(f"{where}.launcher", f"no launcher {launcher_id}; {_known(final.launchers)}"))
    if profile.driver != LAUNCHER:
        problems.append(Problem(f"{where}.driver", f"must be {LAUNCHER}, or absent: its launcher opens the browser"))
    if profile.launcher_profile is None:
        problems.append(Problem(f"{where}.launcher_profile", "is missing: the id that the launcher knows it by"))
    set_by_launcher = {"user_data_dir": profile.user_data_dir, "window": profile.window}
    problems += [
        Problem(f"{where}.{name}", "is the launcher's to set: leave it out here")
        for name, value in set_by_launcher.items()
        if value is not None
    ]
    if profile.disposable or profile.max_active_runs > 1:
        problems.append(Problem(f"{where}.max_active_runs", "must be 1: a launcher's profile has no copies"))
    return problems


def _launchers_at_fault(final: Fleet) -> list[Problem]:
    """Faults of launchers: a setting is missing, a profile is declared twice, or pools allow more than the plan."""
    problems = [
        Problem(f"launchers.{launcher.launcher_id}.{name}", f"is needed by driver {launcher.driver}")
        for launcher in final.launchers.values()
        for name in missing_settings(launcher)
    ]
    problems += [
        Problem(
            f"launchers.{launcher.launcher_id}.calls.stop",
            "is needed beside start: without it nobody can stop the browser",
        )
        for launcher in final.launchers.values()
        if stop_missing(launcher)
    ]
    owners: dict[tuple[str, str], str] = {}
    pools: dict[str, set[str]] = {}
    for profile in final.profiles.values():
        if profile.launcher_id is None or profile.launcher_profile is None:
            continue
        other = owners.setdefault((profile.launcher_id, profile.launcher_profile), profile.profile_id)
        if other != profile.profile_id:
            problems.append(
                Problem(f"profiles.{profile.profile_id}.launcher_profile", f"is used by profile {other} already")
            )
        pools.setdefault(profile.launcher_id, set()).add(profile.pool)
    for launcher_id, names in pools.items():
        launcher = final.launchers.get(launcher_id)
        if launcher is not None and launcher.max_running is not None:
            problems += _plan_problems(launcher, names, final)
    return problems


def _plan_problems(launcher: Launcher, pools: set[str], final: Fleet) -> list[Problem]:
    """A fault if the pools of a launcher's profiles together allow more leases than its plan allows browsers."""
    allowed = [final.limits[pool].max_leases if pool in final.limits else None for pool in sorted(pools)]
    if None not in allowed and sum(limit for limit in allowed if limit is not None) <= (launcher.max_running or 0):
        return []
    return [
        Problem(
            f"launchers.{launcher.launcher_id}.max_running",
            f"is {launcher.max_running}, but the pools of its profiles allow more; set limits for "
            f"{', '.join(sorted(pools))} that come to at most {launcher.max_running} together",
        )
    ]


def _schedule_problems(final: Fleet) -> list[Problem]:
    """A fault for each profile and account that a schedule names and that is not declared."""
    problems: list[Problem] = []
    for schedule in final.schedules.values():
        where, select = f"schedules.{schedule.schedule_id}", schedule.select
        if select.profile_id is not None and select.profile_id not in final.profiles:
            problems.append(Problem(f"{where}.profile", f"no profile {select.profile_id}; {_known(final.profiles)}"))
        if select.account_id is not None and select.account_id not in final.accounts:
            message = f"no account {select.account_id}; {_known(final.accounts)}"
            problems.append(Problem(f"{where}.select.account", message))
    return problems


def _folders_above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _known(records: Mapping[str, object], limit: int = 5) -> str:
    names: Sequence[str] = sorted(records)
    if not names:
        return "none is declared"
    return "declared: " + ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
