"""Puts the newest state of a profile into its directory on this machine, before a browser opens there.

The directory is used as it is if it holds the newest snapshot, or if the store says that this machine's state is newer
than any snapshot. Otherwise the newest snapshot is downloaded, checked, unpacked beside the directory and swapped in,
in one step. If the process is killed at any point, the directory is the old one or the new one, whole; files that are
left beside it are removed by the next checkout.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from leasekeeper.browsers.locked_directory import (
    TakenDirectory,
    held_snapshot,
    lock,
    lock_unused,
    record_snapshot,
    record_token,
    take,
)
from leasekeeper.browsers.machine_name import known_machine_name
from leasekeeper.browsers.profile_directory import (
    StrangeDirectory,
    accept_changes,
    claim_directory,
    directory_of,
    manual_use_of,
    refuse_foreign,
)
from leasekeeper.config import BrowserConfig
from leasekeeper.core.events import manual_use
from leasekeeper.core.failures import Reason
from leasekeeper.core.homes import keeps_directory
from leasekeeper.core.profiles import ManualUse
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.driver_port import CannotOpen, works_in_copy
from leasekeeper.errors import EvidenceUnavailable, Fail, InputError, NotFound, SecretUnusable
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.copying import OnBytes, copy_under, ignore
from leasekeeper.runtime.heartbeat import KeptLease
from leasekeeper.snapshots.contents import Contents, read_contents
from leasekeeper.snapshots.directory_swap import Beside, swap
from leasekeeper.snapshots.packing import SnapshotDamaged, unpack
from leasekeeper.snapshots.profile_store import ProfileStore, open_profile_store
from leasekeeper.snapshots.trimming import size_of, trim
from leasekeeper.threads import run_in_thread

LOCK_SECONDS: Final = 0.2
SHARED_SECONDS: Final = 120.0


@dataclass(slots=True)
class ProfileStores:
    """The profile stores of one program, by their URL: opened once."""

    config: BrowserConfig
    redactor: Redactor
    _opened: dict[str, ProfileStore] = field(default_factory=dict)

    def of(self, grant: Grant) -> ProfileStore | None:
        """The store for this profile's snapshots: the one in the settings here, else the fleet's, else None. Also None
        if the profile keeps no directory. Raises InputError, SecretKeyMissing."""
        text = self.config.profile_store or grant.profile_store
        if not text or not keeps_directory(grant.profile):
            return None
        if text not in self._opened:
            self._opened[text] = open_profile_store(text, self.config, self.redactor)
        return self._opened[text]


def own_directory(grant: Grant, config: BrowserConfig) -> Path:
    """Where the profile's directory is on this machine."""
    return directory_of(grant.profile, Path(config.data_dir).absolute())


@dataclass(slots=True, kw_only=True)
class Checkout:
    """Brings profiles to this machine."""

    store: Store
    config: BrowserConfig
    stores: ProfileStores

    async def bring(
        self, grant: Grant, kept: KeptLease, *, by_person: bool = False, on_bytes: OnBytes = ignore
    ) -> bool:
        """Make the directory here hold the profile's newest state. Returns whether the directory was replaced.

        Raises CannotOpen if that is not possible here, or LeaseLost. Nothing has changed then.
        """
        if not keeps_directory(grant.profile):
            return False
        try:
            place = self.stores.of(grant)
        except (InputError, SecretUnusable) as error:
            raise _unavailable(f"{error.code}: {error.message}") from error
        await self._refuse_elsewhere(grant)
        directory = await run_in_thread(lambda: claim_directory(own_directory(grant, self.config)))
        await run_in_thread(_tidy, directory)
        if grant.profile.max_size_mb is not None:
            await run_in_thread(_trim, directory, grant.profile.max_size_mb * 1_000_000)
        newest = grant.newest
        if newest is None or grant.unsaved_on is not None:
            return False
        if await run_in_thread(held_snapshot, directory) == newest.token:
            return False
        if place is None:
            raise _unavailable(
                f"its newest state is snapshot {newest.token} in a profile store, and none is set here: set "
                "LEASEKEEPER_PROFILE_STORE, or profile_store in the fleet file"
            )
        await self._refuse_manual_use(directory, grant, by_person=by_person)
        taken = await self._take(directory, grant, kept, newest)
        if taken is None:
            return False
        with taken:
            await self._replace(taken, grant, kept, newest, place, on_bytes)
        return True

    async def _refuse_elsewhere(self, grant: Grant) -> None:
        """Raise CannotOpen if only another machine has the newest state. The store may have granted such a profile to a
        program that does not say which machine it is on, as a mere lock."""
        if grant.unsaved_on is None:
            return
        here = await run_in_thread(known_machine_name, self.config)
        if here != grant.unsaved_on:
            raise _unavailable(f"its newest state is in the directory on machine {grant.unsaved_on}, and not saved")

    async def _take(self, directory: Path, grant: Grant, kept: KeptLease, newest: Snapshot) -> TakenDirectory | None:
        """Wait until the directory is free and take it. Returns None if it holds the newest snapshot already."""
        until = boot_time() + SHARED_SECONDS
        while await run_in_thread(held_snapshot, directory) != newest.token:
            kept.check()
            try:
                return await run_in_thread(_take, directory, grant)
            except StrangeDirectory as strange:
                raise CannotOpen(
                    strange.reason, strange.detail, give_back=True, directory_token=strange.directory_token
                ) from strange
            except Fail as refused:
                # Runs that share the profile arrive here together: one of them brings the snapshot, the others wait.
                if not works_in_copy(grant) or boot_time() > until:
                    raise CannotOpen(refused.reason, refused.detail) from refused
            await asyncio.sleep(LOCK_SECONDS)
        return None

    async def _refuse_manual_use(self, directory: Path, grant: Grant, *, by_person: bool) -> None:
        """Record manual use of a directory that is about to be replaced; the old directory is kept beside the new one.
        Raises CannotOpen unless a person opens the profile, or its setting accepts manual use."""
        used = await run_in_thread(manual_use_of, directory)
        if not used:
            return
        lease = grant.lease
        await self.store.record(manual_use(lease, used, grant.profile.manual_use, datetime.now(UTC)))
        await run_in_thread(lambda: accept_changes(directory, token=lease.token, run_id=lease.run_id))
        if not by_person and grant.profile.manual_use is not ManualUse.ACCEPT:
            raise CannotOpen(Reason.MANUAL_USE_DETECTED, used, give_back=True)

    async def _replace(
        self,
        taken: TakenDirectory,
        grant: Grant,
        kept: KeptLease,
        newest: Snapshot,
        place: ProfileStore,
        on_bytes: OnBytes,
    ) -> None:
        beside, lease = Beside(taken.path), grant.lease

        def count(size: int) -> None:
            kept.check()
            on_bytes(size)

        try:
            await run_in_thread(beside.clear)
            await place.download(
                newest.place,
                beside.packed,
                size=newest.packed_bytes,
                sha256=newest.sha256,
                under=lease.ref,
                on_bytes=count,
            )
            await copy_under(kept, partial(_unpack, beside, grant, newest, place))
            kept.check()
            await run_uncancelled(partial(swap, taken.path, token=lease.token, keep=True))
        except BaseException as error:
            await run_in_thread(undo_swap, taken)
            if isinstance(error, SnapshotDamaged | NotFound):
                raise CannotOpen(
                    Reason.PROFILE_CORRUPT,
                    f"its newest snapshot, {newest.token}, cannot be used: {error.message}. Restore another one",
                    give_back=True,
                ) from error
            if isinstance(error, SecretUnusable | EvidenceUnavailable):
                raise _unavailable(f"{error.code}: {error.message}") from error
            raise
        await run_in_thread(beside.clear)


def _take(directory: Path, grant: Grant) -> TakenDirectory:
    lease = grant.lease
    if not works_in_copy(grant):
        refuse_foreign(directory, token=lease.token, run_id=lease.run_id)
    return take(directory, lease)


def _tidy(directory: Path) -> None:
    """Remove files that a killed process left beside the directory, unless another process is using it."""
    beside = Beside(directory)
    if not (beside.incoming.exists() or beside.packed.exists()):
        return
    with suppress(Fail), lock(directory):
        beside.clear()


def _trim(directory: Path, max_bytes: int) -> None:
    """Remove the caches of a directory that is too large, unless the directory is in use."""
    if size_of(directory) <= max_bytes:
        return
    with suppress(Fail), lock_unused(directory):
        trim(directory)


def _unpack(beside: Beside, grant: Grant, newest: Snapshot, place: ProfileStore, on_bytes: OnBytes) -> None:
    """Unpack the snapshot beside the directory, ready to be swapped in, and record there which snapshot it is. Raises
    SnapshotDamaged."""
    profile_id = grant.lease.profile_id
    unpack(beside.packed, beside.incoming, profile_id=profile_id, keyring=place.keyring, on_bytes=on_bytes)
    contents = read_contents(beside.incoming)
    if contents.digest != newest.contents_hash:
        raise SnapshotDamaged(f"its contents differ from what was packed: snapshot {newest.token} of {profile_id}")
    # One below the lease's own token: a browser that opens the directory now records the lease's token, and the
    # directory no longer counts as this snapshot.
    lease, before = grant.lease, grant.lease.token - 1
    record_contents(beside.incoming, contents, snapshot=newest.token, token=before)
    record_token(beside.incoming, before, lease)


def record_contents(directory: Path, contents: Contents, *, snapshot: int, token: int) -> None:
    """Record that the directory holds this snapshot, with these contents."""
    record_snapshot(directory, snapshot, token=token, digest=contents.digest, hashes=contents.hashes)


def undo_swap(taken: TakenDirectory) -> None:
    """After a failure: remove what was not finished, and give the directory back. What was recorded of it before is
    still true."""
    Beside(taken.path).clear()
    taken.give_back()


async def run_uncancelled(work: Callable[[], None]) -> None:
    """Run work that must not be left half-way, in a thread. If we are cancelled meanwhile, CancelledError is raised
    when the work is done."""
    doing = asyncio.ensure_future(run_in_thread(work))
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait({doing})
        raise


def _unavailable(message: str) -> CannotOpen:
    return CannotOpen(Reason.SNAPSHOT_UNAVAILABLE, message, give_back=True)
