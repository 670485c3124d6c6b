"""Saves a profile's directory at the end of a run: measured, compared with its newest snapshot and, if it changed,
uploaded.

This happens after the browser was proven closed and before the run is settled, so that the ending names the snapshot.
An upload that fails does not fail the run: the profile stays on this machine, and the ending says why.
"""

import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from leasekeeper.browsers.locked_directory import known_hashes, lock
from leasekeeper.config import BrowserConfig
from leasekeeper.core.homes import keeps_directory
from leasekeeper.core.leases import LeaseStatus
from leasekeeper.core.settle import Browser, Ending
from leasekeeper.core.snapshots import DirectoryReport, NewSnapshot, Snapshot, Verdict
from leasekeeper.errors import Fail, LeasekeeperError, LeaseLost
from leasekeeper.evidence.redact import MAX_MESSAGE, Redactor
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime.copying import OnBytes, copy_under
from leasekeeper.runtime.heartbeat import KeptLease
from leasekeeper.runtime.profile_checkout import Checkout, ProfileStores, own_directory, record_contents
from leasekeeper.snapshots.contents import Contents, read_contents
from leasekeeper.snapshots.directory_swap import Beside
from leasekeeper.snapshots.packing import Packed, pack
from leasekeeper.snapshots.profile_store import ProfileStore, key_of
from leasekeeper.snapshots.trimming import size_of
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Saving:
    """Saves profiles of this machine."""

    config: BrowserConfig
    stores: ProfileStores

    async def saved(
        self,
        ending: Ending,
        grant: Grant,
        kept: KeptLease,
        *,
        verdict: Verdict = Verdict.NOT_ASKED,
        locked: bool = False,
    ) -> Ending:
        """Save the directory. Returns the ending with a report about the directory and, if one was uploaded, the
        snapshot.

        `locked`: the caller has the directory's lock. Never raises: what cannot be saved stays where it is.
        """
        if not _was_open(ending, grant) or kept.lost is not None:
            return ending
        kept.status = LeaseStatus.RELEASING
        directory = await run_in_thread(lambda: own_directory(grant, self.config).resolve())
        report = DirectoryReport(size_bytes=await run_in_thread(size_of, directory), verdict=verdict)
        try:
            own = nullcontext() if locked else await run_in_thread(lock, directory)
        except Fail as refused:
            return replace(ending, directory=replace(report, problem=refused.detail))
        with own:
            return await self._saved(ending, grant, kept, directory, report)

    async def _saved(
        self, ending: Ending, grant: Grant, kept: KeptLease, directory: Path, report: DirectoryReport
    ) -> Ending:
        snapshot: NewSnapshot | None = None
        try:
            place = self.stores.of(grant)
            if place is None:
                return replace(ending, directory=report)
            contents = await copy_under(kept, lambda _tick: read_contents(directory, known_hashes(directory)))
            if grant.newest is not None and _is_saved(contents, grant.newest, place):
                held = grant.newest.token
                report = replace(report, same_as=held)
            else:
                held = grant.lease.token
                snapshot = await self._upload(grant, kept, directory, contents, place)
            await run_in_thread(_remember, directory, contents, held, grant.lease.token)
        except LeaseLost:
            return ending
        except (LeasekeeperError, OSError) as error:
            text = error.message if isinstance(error, LeasekeeperError) else f"{error.strerror or error}"
            problem = self.stores.redactor.short(text, MAX_MESSAGE)
            _LOG.warning("profile %s was not saved and stays on this machine: %s", grant.lease.profile_id, problem)
            return replace(ending, directory=replace(report, problem=problem))
        return replace(ending, directory=report, snapshot=snapshot)

    async def _upload(
        self, grant: Grant, kept: KeptLease, directory: Path, contents: Contents, place: ProfileStore
    ) -> NewSnapshot:
        packed_file, profile_id = Beside(directory).packed, grant.lease.profile_id
        try:
            packed = await copy_under(kept, partial(_pack, directory, contents, packed_file, profile_id, place))
            kept.check()
            key = key_of(profile_id, grant.lease.token, packed.sha256)
            await place.upload(packed_file, key, packed, under=grant.lease.ref)
        finally:
            await run_in_thread(lambda: packed_file.unlink(missing_ok=True))
        return NewSnapshot(
            place=key,
            sha256=packed.sha256,
            packed_bytes=packed.size,
            contents_hash=contents.digest,
            key_id=packed.key_id,
        )


class Snapshots:
    """Both directions for one program: profiles brought here before a launch, and saved after the close."""

    def __init__(self, store: Store, config: BrowserConfig, redactor: Redactor) -> None:
        self.stores = ProfileStores(config, redactor)
        self.bring = Checkout(store=store, config=config, stores=self.stores).bring
        self.saved = Saving(config=config, stores=self.stores).saved


def _was_open(ending: Ending, grant: Grant) -> bool:
    """Whether the profile's own directory may have changed, and nobody writes to it any more."""
    closed = ending.facts.browser in (Browser.CLOSED, Browser.NONE)
    return ending.engine is not None and closed and keeps_directory(grant.profile)


def _is_saved(contents: Contents, newest: Snapshot, place: ProfileStore) -> bool:
    """Whether the newest snapshot has these contents, under the current key. A snapshot under an old key is uploaded
    again: otherwise that key could never be removed."""
    current = newest.key_id if place.keyring is None else place.keyring.current
    return contents.digest == newest.contents_hash and newest.key_id == current


def _pack(
    directory: Path, contents: Contents, target: Path, profile_id: str, place: ProfileStore, on_bytes: OnBytes
) -> Packed:
    target.unlink(missing_ok=True)
    return pack(directory, contents.files, target, profile_id=profile_id, keyring=place.keyring, on_bytes=on_bytes)


def _remember(directory: Path, contents: Contents, held: int, token: int) -> None:
    """Record which snapshot the directory holds once the ending is settled, and delete the directory that it
    replaced."""
    record_contents(directory, contents, snapshot=held, token=token)
    Beside(directory).delete_replaced()
