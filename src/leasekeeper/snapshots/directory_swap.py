"""Prepares a directory beside a profile's own, and exchanges the two in one step.

A process that dies meanwhile leaves the old directory or the new one, whole, and a folder beside it that the next swap
removes. Both directories share one lock file, so that the lock survives the swap.
"""

import ctypes
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leasekeeper.browsers.keeper.fence_file import OWN_FOLDER, fence_path, lock_path, read_fence, write_durably
from leasekeeper.browsers.keeper.seal import fingerprint, seal_directory

_AT_CWD: Final = -100
_EXCHANGE: Final = 2


@dataclass(frozen=True, slots=True)
class Beside:
    """Our hidden folder beside a profile's directory, on the same file system."""

    directory: Path

    @property
    def incoming(self) -> Path:
        """Where a new directory is prepared."""
        return self.directory.parent / f".{self.directory.name}.incoming"

    @property
    def replaced(self) -> Path:
        """The directory that the first swap since the last clean run replaced, if it was kept."""
        return self.directory.parent / f".{self.directory.name}.replaced"

    @property
    def packed(self) -> Path:
        """The object that is being downloaded or uploaded."""
        return self.directory.parent / f".{self.directory.name}.packed"

    def clear(self) -> None:
        """Remove unfinished work. Only under the directory's lock."""
        shutil.rmtree(self.incoming, ignore_errors=True)
        self.packed.unlink(missing_ok=True)

    def delete_replaced(self) -> None:
        """Remove the directory that was kept. Only under the directory's lock."""
        shutil.rmtree(self.replaced, ignore_errors=True)


def swap(directory: Path, *, token: int, keep: bool = False) -> None:
    """Replace this directory by the prepared one, sealed under the token of its fence file; if it has none, under
    `token`, the one of this directory's.

    Only under its lock. The old directory is removed or, with `keep`, kept, unless an older one is already kept, from
    before the last clean run. Raises OSError; then nothing changed.
    """
    new = Beside(directory).incoming
    (new / OWN_FOLDER).mkdir(mode=0o700, exist_ok=True)
    os.link(lock_path(str(directory)), lock_path(str(new)))
    own = read_fence(str(new))
    if own is not None:
        token = own.token
    else:
        with suppress(FileNotFoundError):
            write_durably(fence_path(str(new)), Path(fence_path(str(directory))).read_bytes())
    new.chmod(0o700)
    if not seal_directory(str(new), token):
        raise OSError(f"{new} cannot be sealed under token {token}")
    _flush(new)
    _exchange(new, directory)
    _flush(directory)
    if keep and fingerprint(str(new)) and not Beside(directory).replaced.exists():
        new.rename(Beside(directory).replaced)
    shutil.rmtree(new, ignore_errors=True)


def _exchange(one: Path, other: Path) -> None:
    """Exchange two directories in one step; if the file system cannot do that, in two renames."""
    libc = ctypes.CDLL(None, use_errno=True)
    exchange = getattr(libc, "renameat2", None)
    if exchange is not None:
        names = os.fsencode(one), os.fsencode(other)
        if exchange(_AT_CWD, names[0], _AT_CWD, names[1], ctypes.c_uint(_EXCHANGE)) == 0:
            return
    between = other.with_name(f"{one.name}.old")
    shutil.rmtree(between, ignore_errors=True)
    other.rename(between)
    one.rename(other)
    between.rename(one)


def _flush(directory: Path) -> None:
    """Flush everything below the directory to disk."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        flush = getattr(ctypes.CDLL(None), "syncfs", None)
        if flush is None or flush(handle) != 0:
            os.sync()
    finally:
        os.close(handle)
