"""A profile's directory under its lock, and the files in it that are Leasekeeper's own.

The runtime reaches the lock, the fence file, the seal and the snapshot record of a directory only through this module;
the keeper's modules know their formats. Raises `Fail` with a reason of the failure table. Everything here blocks.
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
    """A directory that this process has locked, until `release`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._lock: int | None = descriptor

    def release(self) -> None:
        """Release the lock. May be called twice."""
        if self._lock is not None:
            unlock_directory(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


class TakenDirectory(LockedDirectory):
    """A directory taken for a lease: locked, its fence file has the lease's token, and nobody else uses it."""

    def __init__(self, path: Path, descriptor: int, token: int, token_before: int | None) -> None:
        super().__init__(path, descriptor)
        self._token = token
        self._token_before = token_before
        self._before = fingerprint(str(path))

    def forget_tabs(self) -> None:
        """Delete the open tabs, so that the next browser starts with an empty page. Does nothing while one is open."""
        if other_user_of(str(self.path)) is None:
            forget_tabs(str(self.path))

    def accept(self) -> None:
        """Seal the directory as it is: the changes that a person made were recorded."""
        seal_directory(str(self.path), self._token)
        self._token_before = self._token

    def give_back(self) -> None:
        """Keep the seal as it was: no browser wrote to the directory under this lease."""
        keep_seal(str(self.path), self._token, self._token_before)

    def give_back_unchanged(self) -> bool:
        """`give_back`, if nothing in the directory has changed since it was taken. Returns whether nothing has."""
        unchanged = fingerprint(str(self.path)) == self._before
        if unchanged:
            self.give_back()
        return unchanged

    def seal(self) -> str:
        """Seal the directory as its browser left it. Returns why it cannot be sealed; empty if it was sealed."""
        until = boot_time() + LINGER_SECONDS
        while (user := other_user_of(str(self.path))) is not None and boot_time() < until:
            time.sleep(0.05)  # waits: a browser's child processes outlive it for a moment, without a signal
        if user is not None:
            return user
        exit_type = read_exit_type(str(self.path / "Default" / "Preferences"))
        if exit_type not in (None, "Normal"):
            return f"the profile's exit_type is {exit_type}, not Normal"
        return "" if seal_directory(str(self.path), self._token) else f"{self.path} cannot be sealed"


def take(directory: Path, lease: Lease) -> TakenDirectory:
    """Take the directory for this lease, without waiting. Raises Fail if it is in use, or its token is higher."""
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
    """As `lock`. Raises Fail also if a browser that somebody opened by hand uses it: that one has no lock of ours."""
    user = other_user_of(str(directory))
    if user is not None:
        raise Fail(Reason.PROFILE_IN_USE_ELSEWHERE, user)
    return lock(directory, shared=shared)


def has_session(directory: Path) -> bool:
    """Whether a browser has written session files there."""
    return bool(fingerprint(str(directory)))


def held_snapshot(directory: Path) -> int | None:
    """The token of the snapshot that the directory holds; None if it holds none, or was opened since."""
    return read_held_snapshot(str(directory))


def known_hashes(directory: Path) -> Hashes:
    """The hashes of the directory's files when it last held a snapshot, each with the file's size and time then."""
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
