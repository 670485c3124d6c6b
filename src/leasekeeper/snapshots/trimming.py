"""The size of a profile's directory, and its caches: what a browser makes again by itself."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from leasekeeper.browsers.keeper.seal import fingerprint, read_seal, seal_directory
from leasekeeper.snapshots.contents import EXTENSIONS, LEFT_OUT

# Left out of snapshots, but not caches: our own folder, locks, and files that belong to a process. The logs of
# databases are small, and the seal counts them among the files of a session.
_NOT_CACHES: Final = frozenset({
    ".leasekeeper", "Singleton*", "LOCK", "LOG", "LOG.old", "lockfile", "RunningChromeVersion", "*.tmp", "WidevineCdm",
})  # fmt: skip
# Folders to skip: in any other place, and in a profile's own folder.
_WHOLE: Final = ((".leasekeeper",), (".leasekeeper", EXTENSIONS))
CACHES: Final = tuple(pattern for pattern in LEFT_OUT if pattern not in _NOT_CACHES)


def size_of(directory: Path) -> int:
    """The size of everything below, in bytes. Files that vanish meanwhile do not count."""
    total = 0
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                total += size_of(Path(entry.path)) if stat.S_ISDIR(facts.st_mode) else facts.st_size
    return total


def find_caches(directory: Path, depth: int = 0) -> Iterator[Path]:
    """Files and folders that a browser makes again. Not those inside another cache, nor in an extension's program."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if any(fnmatchcase(entry.name, pattern) for pattern in CACHES):
                yield Path(entry.path)
            elif entry.is_dir(follow_symlinks=False) and entry.name not in _WHOLE[depth == 1]:
                yield from find_caches(Path(entry.path), depth + 1)


def size_of_caches(directory: Path) -> int:
    """What `trim` would free, in bytes."""
    return sum(_size(path) for path in find_caches(directory))


def _size(path: Path) -> int:
    with suppress(OSError):
        return size_of(path) if path.is_dir() and not path.is_symlink() else path.lstat().st_size
    return 0


def trim(directory: Path, on_bytes: Callable[[int], None] = lambda _size: None) -> int:
    """Remove the caches of a directory, under its lock. Returns how many bytes that freed.

    A directory that was as its last run left it is sealed again, so that this does not count as manual use.
    """
    seal, freed = read_seal(str(directory)), 0
    untouched = seal is not None and seal.files == fingerprint(str(directory))
    for path in list(find_caches(directory)):
        size = _size(path)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        freed += size
        on_bytes(size)
    if seal is not None and untouched:
        seal_directory(str(directory), seal.token)
    return freed
