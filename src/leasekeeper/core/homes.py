"""Home: the machine that has a profile's newest directory. A lane's jobs are reserved for the workers of that machine.

Pure. A machine is identified by a name that its data directory keeps (`browsers.machine_name`), never by a hostname
alone. An empty home means that no machine has the newest state in a directory: no browser has opened the profile yet,
or it was restored. A profile is saved if its newest snapshot is its newest state: then any machine may open it, and
workers of its home are only preferred. Profiles of launchers keep their sessions elsewhere, and runs in a throwaway
copy leave no directory behind: neither has, or changes, a home.
"""

from datetime import datetime
from typing import Final

from leasekeeper.core.browsers import has_directory
from leasekeeper.core.ids import SnapshotId, Token
from leasekeeper.core.leases import Lease, Purpose
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.settle import Browser, Ending, LostFacts
from leasekeeper.core.snapshots import Snapshot, Verdict

NO_HOME: Final = ""
ANYONE: Final = "*"  # no machine has this name

Changes = dict[str, object]


def keeps_directory(profile: Profile) -> bool:
    """Whether the profile's state is in a directory of a machine, and is worth saving."""
    return has_directory(profile.driver) and not profile.disposable


def is_away(home: str, machine: str | None, *, saved: bool) -> bool:
    """Whether the newest state is only in a directory on another machine than `machine`.

    False if `machine` is None: a caller that names no machine opens no directory of ours.
    """
    return bool(home) and machine is not None and home != machine and not saved


def homes_of(machine: str | None) -> list[str]:
    """The values of `reserved_for` whose lanes a worker of this machine may take."""
    return [NO_HOME] if machine is None else [NO_HOME, ANYONE, machine]


def reserved_for(home: str, *, saved: bool) -> str:
    """The machine whose workers alone get the lane's jobs at first; empty or ANYONE if there is no such machine."""
    return ANYONE if saved and not home else home


def opened_up() -> Changes:
    """The jobs have waited long enough for workers of the profile's home: from now on any worker may take them."""
    return {"reserved_for": ANYONE}


def snapshot_of(
    profile: Profile, lease: Lease, ending: Ending, snapshot_id: SnapshotId, now: datetime
) -> Snapshot | None:
    """The record of the snapshot that a run uploaded; None if there is none, or if the run did not have the profile's
    own directory. It is clean only if the browser was proven closed before."""
    new, report = ending.snapshot, ending.directory
    if new is None or not _has_directory(profile, lease):
        return None
    return Snapshot(
        snapshot_id=snapshot_id,
        profile_id=lease.profile_id,
        account_id=lease.account_id,
        token=lease.token,
        run_id=lease.run_id,
        task=lease.task,
        machine=lease.machine,
        engine=ending.engine,
        created_at=now,
        size_bytes=report.size_bytes if report else new.packed_bytes,
        packed_bytes=new.packed_bytes,
        sha256=new.sha256,
        contents_hash=new.contents_hash,
        place=new.place,
        key_id=new.key_id,
        clean=_closed(ending),
        verdict=report.verdict if report else Verdict.NOT_ASKED,
    )


def directory_after(lane: Lane, profile: Profile, lease: Lease, ending: Ending) -> Changes:
    """The changes that say where the newest state is, after a run whose holder reported its end.

    A directory that may have been opened counts as changed: an unproven browser has written to the directory of its
    machine. A program with a direct lease counts only if it reports a browser's version: many use the lease and no
    directory.
    """
    if not _has_directory(profile, lease) or _restored_since(lane, lease):
        return {}
    size: Changes = {} if ending.directory is None else {"size_bytes": ending.directory.size_bytes}
    if ending.engine is None and (ending.facts.browser is not Browser.NOT_PROVEN or lease.purpose is Purpose.API):
        return size
    if _closed(ending) and ending.snapshot is not None:
        return {**size, **_at_home(lease, saved=True), "snapshot": lease.token}
    report = ending.directory
    same = report is not None and report.same_as is not None and report.same_as == lane.snapshot
    if _closed(ending) and same:
        return {**size, **_at_home(lease, saved=True)}
    problem = report.problem if report is not None else ""
    if not problem and lane.snapshot is not None and ending.facts.browser is Browser.NOT_PROVEN:
        problem = "the browser was not proven closed"
    return {**size, **_at_home(lease, saved=False, reason=problem)}


def directory_lost(lane: Lane, profile: Profile, lease: Lease, facts: LostFacts) -> Changes:
    """Where the newest state is after a run whose holder vanished: on its machine, unless a report proves that the
    directory there is no newer than the newest snapshot."""
    if not _has_directory(profile, lease) or _restored_since(lane, lease) or lease.purpose is Purpose.API:
        return {}
    if lane.saved and facts.same_as is not None and facts.same_as == lane.snapshot:
        return _at_home(lease, saved=True)
    reason = "" if lane.snapshot is None else f"run {lease.run_id} lost its worker before it was saved"
    return _at_home(lease, saved=False, reason=reason)


def directory_restored(lane: Lane, snapshot: Snapshot) -> Changes:
    """The lane after it was restored to a copy of a snapshot: the directory of every machine is older now."""
    return {
        "token": snapshot.token,
        "snapshot": snapshot.token,
        "saved": True,
        "unsaved_reason": "",
        "home": NO_HOME,
        "reserved_for": reserved_for(NO_HOME, saved=True),
        "engine": snapshot.engine or lane.engine,
        "size_bytes": snapshot.size_bytes,
    }


def store_changed(lane: Lane) -> Changes:
    """The fleet's profile store was changed or removed: the directory at home is the newest state until it is saved to
    the new one. A profile without a home stays as it is: nobody may open another state instead."""
    if not (lane.saved and lane.home):
        return {}
    reason = "the profile store was changed"
    return {"saved": False, "unsaved_reason": reason, "reserved_for": reserved_for(lane.home, saved=False)}


def unsaved_on(lane: Lane) -> str | None:
    """The machine whose directory is newer than any snapshot; None if there is none."""
    return lane.home if lane.home and not lane.saved else None


def _has_directory(profile: Profile, lease: Lease) -> bool:
    return lease.machine is not None and keeps_directory(profile)


def _restored_since(lane: Lane, lease: Lease) -> bool:
    """Whether the newest snapshot has a higher token than this lease: then what the run left behind is older."""
    return lane.snapshot is not None and Token(lane.snapshot) > lease.token


def _closed(ending: Ending) -> bool:
    return ending.facts.browser in (Browser.CLOSED, Browser.NONE)


def _at_home(lease: Lease, *, saved: bool, reason: str = "") -> Changes:
    home = lease.machine or NO_HOME
    return {"home": home, "saved": saved, "unsaved_reason": reason, "reserved_for": reserved_for(home, saved=saved)}
