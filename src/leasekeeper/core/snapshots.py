"""Snapshots: copies of a profile's directory that any machine can fetch, and which of them is the newest.

Pure. A snapshot is ordered by the fencing token of the lease that made it, which also names it among those of its
profile. Where its bytes are, and how they are packed, is not known here. Words: the *newest snapshot* is the one with
the highest token; a profile is *saved* while no machine has a newer directory than that snapshot.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Final

from leasekeeper.core.ids import AccountId, ProfileId, RunId, SnapshotId, Token
from leasekeeper.core.records import quick_init
from leasekeeper.errors import IllegalTransition, NotFound

MAX_NAMED: Final = 10
MAX_KEEP: Final = 1_000
MAX_SIZES: Final = 7
DAILY_FOR: Final = timedelta(days=7)
KEEP_SNAPSHOTS: Final = 10


class Verdict(StrEnum):
    """What the login canary said at the end of a run."""

    LOGGED_IN = "logged_in"
    LOGGED_OUT = "logged_out"
    NOT_ASKED = "not_asked"


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class NewSnapshot:
    """What a run reports of the snapshot that it uploaded. The store knows the rest.

    It is uploaded and verified before the ending that names it is settled. `place` is the object's name within the
    profile store, a different one for each token. `sha256` and `packed_bytes` are the hash and the length of the stored
    object. `contents_hash` is of what counts as changed in the directory (see `snapshots.contents`). `key_id` is the
    key that it is encrypted with; None: it is not encrypted.
    """

    place: str
    sha256: str
    packed_bytes: int
    contents_hash: str
    key_id: str | None = None


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryReport:
    """What a run reports of the profile's own directory, if it opened that, after the browser was closed.

    `same_as` is the token of the snapshot with the same contents: a run that changed nothing names the newest one, and
    need not upload. None: the directory changed, or was not compared. `problem` is why a changed directory was not
    uploaded, as a sentence; empty if there is no profile store.
    """

    size_bytes: int
    same_as: Token | None = None
    verdict: Verdict = Verdict.NOT_ASKED
    problem: str = ""


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One snapshot of a profile.

    `token` is the fencing token of the lease that made it: unique in its profile, it orders the snapshots; a person
    names a snapshot by it (`restore --to 41`). A restored snapshot gets a second record for the same object: that one
    has a token of its own, is the newest, and its `restored_from` is the token of the first. `size_bytes` is the
    directory's size. `engine` is the version of the browser that was open in it. `clean`: the browser was proven closed
    before the directory was packed; a snapshot that is not clean is kept for inspection, and never becomes the newest.
    With `discarded_at` it is not wanted any more: nothing may use it, its object is deleted, then the record.
    """

    snapshot_id: SnapshotId
    profile_id: ProfileId
    account_id: AccountId
    token: Token
    run_id: RunId | None
    task: str | None = None
    machine: str | None = None
    engine: int | None = None
    created_at: datetime
    size_bytes: int
    packed_bytes: int
    sha256: str
    contents_hash: str
    place: str
    key_id: str | None = None
    clean: bool = True
    verdict: Verdict = Verdict.NOT_ASKED
    restored_from: Token | None = None
    discarded_at: datetime | None = None


def known_good(snapshots: Iterable[Snapshot]) -> Snapshot | None:
    """The snapshot to go back to first: the newest that was logged in; without one, the newest whose login was not
    checked. Never one that was logged out or is not clean. None if there is no such snapshot."""
    usable = [each for each in snapshots if each.clean and each.discarded_at is None]
    for verdict in (Verdict.LOGGED_IN, Verdict.NOT_ASKED):
        found = [each for each in usable if each.verdict is verdict]
        if found:
            return max(found, key=lambda each: each.token)
    return None


def too_large(max_size_mb: int | None, size_bytes: int | None) -> bool:
    """Whether a directory of this size is above the profile's limit."""
    return max_size_mb is not None and size_bytes is not None and size_bytes > max_size_mb * 1_000_000


def last_of_each_day(sizes: Iterable[tuple[datetime, int]]) -> list[tuple[datetime, int]]:
    """How a directory grew: the last measured size of each day (UTC), newest first."""
    days: dict[date, tuple[datetime, int]] = {}
    for at, size in sorted(sizes, reverse=True):
        days.setdefault(at.date(), (at, size))
    return list(days.values())[:MAX_SIZES]


def to_restore(profile_id: str, snapshots: Iterable[Snapshot], token: Token | None) -> Snapshot:
    """The snapshot to go back to: the one of this token, or the last known good one if it is None.
    Raises NotFound or IllegalTransition."""
    there = [each for each in snapshots if each.discarded_at is None]
    if not there:
        raise NotFound(f"profile {profile_id} has no snapshots", what="snapshot", id=profile_id)
    if token is None:
        if (good := known_good(there)) is not None:
            return good
        raise IllegalTransition(f"profile {profile_id} has no snapshot that is known to be good; name one by its token")
    found = next((each for each in there if each.token == token), None)
    if found is None:
        newest = ", ".join(str(each.token) for each in sorted(there, key=lambda each: -each.token)[:MAX_NAMED])
        raise NotFound(
            f"profile {profile_id} has no snapshot of token {token}; the newest are {newest}",
            what="snapshot",
            id=str(token),
        )
    if not found.clean:
        raise IllegalTransition(
            f"snapshot {token} of profile {profile_id} was taken of a browser that was not proven closed: it may be "
            "torn, choose another one"
        )
    return found


def repeated(snapshot: Snapshot, snapshot_id: SnapshotId, token: Token, now: datetime) -> Snapshot:
    """The record that makes an earlier snapshot the newest again, under a new token."""
    return replace(
        snapshot, snapshot_id=snapshot_id, token=token, created_at=now, restored_from=snapshot.token, discarded_at=None
    )


def split_by_place(gone: Iterable[Snapshot], kept: Iterable[Snapshot]) -> tuple[list[Snapshot], list[Snapshot]]:
    """Split snapshots that are not wanted any more: those whose object is to be deleted, and those whose object another
    snapshot still uses. The records of the second kind may be deleted at once."""
    places = {each.place for each in kept}
    alone, shared = list[Snapshot](), list[Snapshot]()
    for each in gone:
        (shared if each.place in places else alone).append(each)
        places.add(each.place)
    return alone, shared


def unwanted(snapshots: Iterable[Snapshot], *, keep: int, newest: Token | None, now: datetime) -> list[Snapshot]:
    """The snapshots of one profile that retention does not keep, oldest first.

    It keeps the newest `keep`, the last one of each of the past seven days (UTC), the last that was logged in, the one
    that `restore` offers first, and always the one that is the profile's newest state.
    """
    kept = sorted((each for each in snapshots if each.discarded_at is None), key=lambda each: each.token, reverse=True)
    tokens = {each.token for each in kept[: max(keep, 1)]} | {newest}
    days = set()
    for each in kept:
        day = each.created_at.date()
        if day not in days and each.created_at > now - DAILY_FOR:
            days.add(day)
            tokens.add(each.token)
    if (good := known_good(kept)) is not None:
        tokens.add(good.token)
    return [each for each in reversed(kept) if each.token not in tokens]
