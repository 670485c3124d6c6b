"""A profile's directory under its lock, taken for a lease or locked for a moment, and what its own files say.

The runtime's one way to the lock, the fence file, the seal and the record of the snapshot that a directory has; how
they are written only the keeper's modules know. Refusals are `Fail`s with a reason of the table. Everything here
blocks.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from leasekeeper.browsers.keeper.basis import Basis, Hashes, read_basis, write_basis
from leasekeeper.browsers.keeper.basis import held_snapshot as read_held_snapshot
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.directory import forget_tabs, other_user_of, take_directory
from leasekeeper.browsers.keeper.fence_file import lock_directory, unlock_directory, write_fence
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.browsers.keeper.proof import read_exit_type
from leasekeeper.browsers.keeper.seal import fingerprint, keep_seal, seal_directory
from leasekeeper.browsers.keeper_reports import failure_reason
from leasekeeper.core.failures import Reason
from leasekeeper.core.leases import Lease
from leasekeeper.errors import Fail

LINGER_SECONDS: Final = 3.0


class LockedDirectory:
    """A directory whose lock this process has, until `release`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._lock: int | None = descriptor

    def release(self) -> None:
        """Let others in. May be called twice."""
        if self._lock is not None:
            unlock_directory(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


class TakenDirectory(LockedDirectory):
    """A directory that is taken for a lease: its fence file has the lease's token, and nobody else is in it."""

    def __init__(self, path: Path, descriptor: int, token: int, token_before: int | None) -> None:
        super().__init__(path, descriptor)
        self._token = token
        self._token_before = token_before
        self._before = fingerprint(str(path))

    def forget_tabs(self) -> None:
        """Let the next browser start with an empty page. Not while one is open."""
        if other_user_of(str(self.path)) is None:
            forget_tabs(str(self.path))

    def accept(self) -> None:
        """What a person changed was recorded: from here on the directory is as it should be."""
        seal_directory(str(self.path), self._token)
        self._token_before = self._token

    def give_back(self) -> None:
        """No browser wrote to it under this lease: what was true of the directory before still is."""
        keep_seal(str(self.path), self._token, self._token_before)

    def give_back_unchanged(self) -> bool:
        """`give_back`, if nothing has changed in it since it was taken. Returns whether that is so."""
        unchanged = fingerprint(str(self.path)) == self._before
        if unchanged:
            self.give_back()
        return unchanged

    def seal(self) -> str:
        """Seal it as its browser has left it. Returns why it cannot be sealed; empty if it was."""
        until = boot_time() + LINGER_SECONDS
        while (user := other_user_of(str(self.path))) is not None and boot_time() < until:
            time.sleep(0.05)  # waits: a browser's processes outlive it for a moment, and report nothing
        if user is not None:
            return user
        exit_type = read_exit_type(str(self.path / "Default" / "Preferences"))
        if exit_type not in (None, "Normal"):
            return f"the profile's exit_type is {exit_type}, not Normal"
        return "" if seal_directory(str(self.path), self._token) else f"{self.path} cannot be sealed"


def take(directory: Path, lease: Lease) -> TakenDirectory:
    """Take the directory for this lease, without waiting. Raises Fail if somebody is in it, or had a higher token."""
    try:
        lock, before = take_directory(str(directory), lease.token, lease.lease_id, lease.run_id)
    except Refused as refused:
        raise Fail(failure_reason(refused.reason), refused.message) from refused
    return TakenDirectory(directory, lock, lease.token, before)


def lock(directory: Path, *, shared: bool = False) -> LockedDirectory:
    """Lock the directory, without waiting. Raises Fail if somebody else has the lock."""
    try:
        return LockedDirectory(directory, lock_directory(str(directory), shared=shared))
    except Refused as refused:
        raise Fail(failure_reason(refused.reason), refused.message) from refused


def lock_unused(directory: Path, *, shared: bool = False) -> LockedDirectory:
    """The same, and Fail also for a browser that has no lock of ours: somebody opened it by hand."""
    user = other_user_of(str(directory))
    if user is not None:
        raise Fail(Reason.PROFILE_IN_USE_ELSEWHERE, user)
    return lock(directory, shared=shared)


def has_session(directory: Path) -> bool:
    """Whether a browser has left anything there."""
    return bool(fingerprint(str(directory)))


def held_snapshot(directory: Path) -> int | None:
    """The token of the snapshot that the directory holds now; None: of none, or it was opened since."""
    return read_held_snapshot(str(directory))


def known_hashes(directory: Path) -> Hashes:
    """The hashes of its files when it last held a snapshot, with the size and time that each is valid for."""
    basis = read_basis(str(directory))
    return {} if basis is None else basis.hashes


def record_snapshot(
    directory: Path, snapshot: int, *, token: int, digest: str, hashes: Mapping[str, tuple[int, int, str]]
) -> None:
    """Record durably that the directory holds this snapshot while its fence file has this token. Raises OSError."""
    write_basis(str(directory), Basis(snapshot, token, digest, dict(hashes)))


def record_token(directory: Path, token: int, lease: Lease) -> None:
    """Write the fence file of a directory that no browser has opened yet. Raises OSError."""
    write_fence(str(directory), token, lease.lease_id, lease.run_id)
