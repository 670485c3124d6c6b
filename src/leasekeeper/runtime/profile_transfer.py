"""Import and export of a profile's directory by a person, under a lease.

An import is prepared beside the real directory and swapped in, in one step: before the swap the profile is untouched,
after it the new directory is there as a whole. An interrupted transfer gives the lease back and leaves nothing behind.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from leasekeeper.browsers.finding import find_browser
from leasekeeper.browsers.locked_directory import (
    LockedDirectory,
    TakenDirectory,
    has_session,
    held_snapshot,
    lock_unused,
    take,
)
from leasekeeper.browsers.machine_name import machine_name
from leasekeeper.browsers.profile_directory import claim_directory, directory_of, last_engine, refuse_foreign
from leasekeeper.config import Config
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.accounts import Account
from leasekeeper.core.browsers import has_directory
from leasekeeper.core.events import exported, imported
from leasekeeper.core.failures import Reason
from leasekeeper.core.granting import purpose_of_visit
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.core.snapshots import DirectoryReport
from leasekeeper.encryption import Keyring, read_keyring
from leasekeeper.errors import Conflict, Fail, InputError, LeasekeeperError, LeaseLost
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant, LeaseRequest, Settled, Store
from leasekeeper.runtime.copying import OnBytes, copy_under
from leasekeeper.runtime.direct_leases import acquire_waiting
from leasekeeper.runtime.heartbeat import Heartbeat, settle_with_retries
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.lost_leases import LostLeases
from leasekeeper.runtime.profile_checkout import undo_swap
from leasekeeper.runtime.saving import Snapshots
from leasekeeper.runtime.state_import import make_directory
from leasekeeper.snapshots.contents import File, find_files
from leasekeeper.snapshots.cookie_store import check_cookies
from leasekeeper.snapshots.directory_swap import Beside, swap
from leasekeeper.snapshots.packing import pack
from leasekeeper.snapshots.sources import Source, atomic_file, copy_source, write_zip
from leasekeeper.snapshots.trimming import size_of, size_of_caches, trim
from leasekeeper.threads import run_in_thread
from leasekeeper.wording import REFUSALS

T = TypeVar("T")
# Called with the number of bytes to copy. Returns a function that is called with the size of each part.
Counting = Callable[[int], OnBytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """What was imported or exported."""

    profile_id: str
    directory: str
    files: int
    size: int
    engine: int | None
    profile_state: str | None


@dataclass(slots=True, kw_only=True)
class Transfer:
    """Imports and exports of one person on this machine."""

    store: Store
    config: Config
    heartbeat: Heartbeat
    who: str
    actor: str
    snapshots: Snapshots = field(init=False)

    def __post_init__(self) -> None:
        self.snapshots = Snapshots(self.store, self.config.browsers, Redactor())

    async def import_source(self, profile_id: str, source: Source, *, replace: bool, counting: Counting) -> Transferred:
        """Replace the profile's directory on this machine with the contents of the source.

        Raises InputError or Conflict, and changes nothing, if its cookies cannot be read here, the browser here is
        older than the profile, the browser does not take the storage state, or the profile has a session already
        (unless `replace`).
        """
        async with self._leased(profile_id) as under:
            lease, directory = under.grant.lease, under.directory
            taken = await run_in_thread(_take, directory, under.grant, replace)
            try:
                await run_in_thread(Beside(directory).clear)
                await self._stage(source, under, profile_id, counting(source.size))
                engine = await run_in_thread(self._checked, source, Beside(directory).incoming)
                files = await run_in_thread(find_files, Beside(directory).incoming)
                under.guard.kept.check()
                event = imported(
                    under.grant.profile, str(source.path), engine, lease.token, self.actor, datetime.now(UTC)
                )
                await self.store.record(event)
                await _to_the_end(_put_in_place(under, engine))
            except BaseException:
                await run_in_thread(undo_swap, taken)
                raise
            finally:
                taken.release()
        return Transferred(
            profile_id=profile_id,
            directory=str(directory),
            files=len(files),
            size=sum(file.size for file in files),
            engine=engine,
            profile_state=under.settled.profile_state if under.settled else None,
        )

    async def _stage(self, source: Source, under: "_Under", profile_id: str, on_bytes: OnBytes) -> None:
        """Make the directory that will be swapped in, beside the real one."""
        incoming, kept = Beside(under.directory).incoming, under.guard.kept
        if source.state is None:
            keyring = read_keyring(self.config.secrets) if source.packed is not None else None
            copy = partial(copy_source, source, incoming, profile_id=profile_id, keyring=keyring)
            await copy_under(kept, copy, on_bytes)
            return
        browser = await run_in_thread(find_browser, self.config.browsers.browser)

        def done(number: int) -> None:
            kept.check()
            on_bytes(number)

        await make_directory(incoming, source.state, browser, self.config.browsers, done)

    def _checked(self, source: Source, incoming: Path) -> int:
        """The version of the browser that used the directory last. Raises InputError if the directory cannot be used
        here."""
        check_cookies(incoming)
        last, here = last_engine(incoming), None
        with suppress(LeasekeeperError):
            here = find_browser(self.config.browsers.browser).engine
        if last is None:
            raise InputError(f"{source.path} has no file 'Last Version': import the whole user data directory")
        if here is not None and last > here:
            raise InputError(
                f"{source.path} was last used by version {last}, and the browser here is {here}: an older one would "
                "damage it. Install a newer browser, or set LEASEKEEPER_BROWSER to one"
            )
        return last

    async def export(self, profile_id: str, target: Path, *, encrypted: bool, counting: Counting) -> Transferred:
        """Write the profile's directory as a ZIP, or encrypted with the key of the settings.

        Raises InputError or Conflict; then there is no file.
        """
        keyring = read_keyring(self.config.secrets) if encrypted else None
        async with self._leased(profile_id) as under:
            directory = under.directory
            await self.snapshots.bring(under.grant, under.guard.kept, by_person=True)
            with await run_in_thread(_lock_to_read, directory):
                files = await run_in_thread(find_files, directory)
                total = sum(file.size for file in files)
                write = partial(_write_export, directory, files, target, profile_id, keyring)
                await copy_under(under.guard.kept, write, counting(total))
            await self.store.record(exported(under.grant.lease, str(target), self.actor, datetime.now(UTC)))
        return Transferred(
            profile_id=profile_id,
            directory=str(directory),
            files=len(files),
            size=total,
            engine=await run_in_thread(last_engine, directory),
            profile_state=under.settled.profile_state if under.settled else None,
        )

    async def trim(self, profile_id: str, *, counting: Counting) -> int:
        """Remove the caches from the profile's directory here. Returns how many bytes that freed."""
        async with self._leased(profile_id) as under:
            with await run_in_thread(lock_unused, under.directory):
                caches = await run_in_thread(size_of_caches, under.directory)
                freed = await copy_under(under.guard.kept, partial(trim, under.directory), counting(caches))
                if await run_in_thread(_is_newest, under):
                    under.report = DirectoryReport(size_bytes=await run_in_thread(size_of, under.directory))
        return freed

    def _directory_of(self, profile: Profile) -> Path:
        return directory_of(profile, Path(self.config.browsers.data_dir).absolute())

    async def _request(self, profile_id: str) -> LeaseRequest:
        profile, lane = await self.store.get(Profile, profile_id), await self.store.get(Lane, profile_id)
        if not has_directory(profile.driver):
            raise InputError(
                f"profile {profile_id} is opened by {profile.driver}: its session is not in a directory here"
            )
        account = await self.store.get(Account, profile.account_id)
        return LeaseRequest(
            profile_id=ProfileId(profile_id),
            worker_id=WorkerId(self.who),
            incarnation=f"{self.who}-{os.urandom(6).hex()}",
            purpose=purpose_of_visit(lane.state, paused=account.paused),
            machine=await run_in_thread(machine_name, self.config.browsers),
        )

    @asynccontextmanager
    async def _leased(self, profile_id: str) -> "AsyncIterator[_Under]":
        request = await self._request(profile_id)
        self.heartbeat.start()
        grant, sent_at = await acquire_waiting(
            self.store, LostLeases(self.store, self.config), request, None, timedelta(0)
        )
        guard = LeaseGuard(self.heartbeat, grant.lease, sent_at)
        try:
            under = _Under(grant, guard, self._directory_of(grant.profile))
            try:
                under.directory = await run_in_thread(claim_directory, under.directory)
                yield under
            except Fail as refused:
                await _to_the_end(self._settle(under, Reason.BROWSER_LAUNCH_FAILED, refused.detail))
                raise Conflict(
                    refused.detail, cause=ConflictReason.PROFILE_NOT_OPENED, profile_id=profile_id
                ) from refused
            except BaseException as error:
                text = error.message if isinstance(error, LeasekeeperError) else f"stopped: {type(error).__name__}"
                await _to_the_end(self._settle(under, Reason.WORKER_STOPPED, text))
                raise
            under.settled = await _to_the_end(self._settle(under, None, ""))
        finally:
            guard.release()
        if under.settled.refused is not None:
            raise LeaseLost(
                f"the lease of {profile_id} was lost on the way: {REFUSALS[under.settled.refused]}",
                refusal=under.settled.refused,
                lease_id=grant.lease.lease_id,
                profile_id=profile_id,
            )

    async def _settle(self, under: "_Under", reason: str | None, message: str) -> Settled:
        """Settle the transfer, in which no browser was open. If an engine is set, the directory on this machine is the
        profile's newest state now."""
        ending = Ending(
            ref=under.grant.lease.ref,
            reason=reason,
            message=message,
            not_started=reason is not None,
            facts=EndFacts(browser=Browser.NONE),
            engine=under.engine,
            proxy_used=False,
            directory=under.report,
        )
        if under.engine is not None:  # an import: what was brought in is the newest state of the profile
            ending = await self.snapshots.saved(ending, under.grant, under.guard.kept)
        return await settle_with_retries(self.store, ending, under.guard.kept)


class _Under:
    """The lease of a transfer, and what is known of the transfer so far."""

    def __init__(self, grant: Grant, guard: LeaseGuard, directory: Path) -> None:
        self.grant, self.guard, self.directory = grant, guard, directory
        self.engine: int | None = None
        self.report: DirectoryReport | None = None
        self.settled: Settled | None = None


def _is_newest(under: _Under) -> bool:
    """Whether the directory here holds the profile's newest state: only then its size is the profile's size."""
    grant = under.grant
    if grant.newest is None or grant.unsaved_on is not None:
        return True
    return held_snapshot(under.directory) == grant.newest.token


def _take(directory: Path, grant: Grant, replace: bool) -> TakenDirectory:
    """Take the directory for the lease. Raises Fail if it is in use or foreign, Conflict if it has a session."""
    lease = grant.lease
    refuse_foreign(directory, token=lease.token, run_id=lease.run_id)
    if (has_session(directory) or grant.newest is not None) and not replace:
        where = f"in {directory}" if grant.newest is None else f"in snapshot {grant.newest.token}"
        raise Conflict(
            f"profile {lease.profile_id} has a session already, {where}: it would be lost. Export it first if "
            "you may want it back; --replace replaces it",
            cause=ConflictReason.PROFILE_NOT_EMPTY,
            profile_id=lease.profile_id,
        )
    return take(directory, lease)


async def _put_in_place(under: _Under, engine: int | None) -> None:
    await run_in_thread(swap, under.directory, token=under.grant.lease.token)
    under.engine = engine  # what is in the directory is what was imported


def _write_export(
    directory: Path,
    files: tuple[File, ...],
    target: Path,
    profile_id: str,
    keyring: Keyring | None,
    on_bytes: OnBytes,
) -> None:
    if keyring is None:
        write_zip(directory, files, target, on_bytes)
        return
    with atomic_file(target) as part:
        pack(directory, files, part, profile_id=profile_id, keyring=keyring, on_bytes=on_bytes)


def _lock_to_read(directory: Path) -> LockedDirectory:
    if not has_session(directory):
        raise InputError(f"there is nothing to export: {directory} has no session in it")
    return lock_unused(directory, shared=True)


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run work that must not stop half-way. If we are cancelled meanwhile, CancelledError is raised when the work is
    done."""
    doing = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait({doing})
        doing.result()
        raise
