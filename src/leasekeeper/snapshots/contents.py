"""Which files of a Chromium user data directory travel in a snapshot, and which of them show that a run changed the
profile.

The tables are the whole rule. Left behind: caches, which the browser makes again, and locks and logs, which belong to a
process. (A service worker's ScriptCache is not a cache: without its script the registration is dropped.) Everything
else travels, unknown files too: a new version may store a login in a new place. Files that are rewritten whenever a
browser is opened and closed travel, but do not count as a change.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from leasekeeper.errors import InputError

MAX_FILES: Final = 100_000
MAX_DEPTH: Final = 32
_CHUNK: Final = 1024 * 1024

# The folder with the extensions of a profile: all their files travel, whatever their names.
EXTENSIONS: Final = "Extensions"

# Names of files and folders, at any depth, that stay behind.
LEFT_OUT: Final = (
    ".leasekeeper",  # belongs to this machine: lock, fence file and seal
    "Singleton*", "LOCK", "LOG", "LOG.old", "lockfile", "RunningChromeVersion", "*.tmp",
    "Cache", "Cache_Data", "Code Cache", "GPUCache", "GPUPersistentCache", "Dawn*Cache", "GrShaderCache",
    "GraphiteDawnCache", "ShaderCache", "component_crx_cache", "extensions_crx_cache", "Media Cache",
    "Crash Reports", "Crashpad", "BrowserMetrics*", "optimization_guide_model_store", "OptimizationHints",
    "Safe Browsing*", "Shared Dictionary", "SmartCardDeviceNames", "screen_ai", "WidevineCdm", "Subresource Filter",
)  # fmt: skip

# Paths that a browser rewrites without any change (seen with Chromium 156). They travel.
NOT_A_CHANGE: Final = (
    "Local State", "Last Version", "Variations", "segmentation_platform/*", "*/Preferences", "*/Secure Preferences",
    "*/Sessions/*", "*/Sessions_Encrypted/*", "*/Session Storage/*", "*/shared_proto_db/*",
    "*/Site Characteristics Database/*", "*/Network Persistent State", "*/TransportSecurity", "*/Reporting and NEL*",
    "*-journal",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that travels: its path below the directory, with `/` between names."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The files of a directory that travel, sorted by path, and a hash of those that count as a change."""

    files: tuple[File, ...]
    digest: str
    hashes: Mapping[str, tuple[int, int, str]]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def travels(path: str) -> bool:
    """Whether the file or folder at this path travels: neither it nor a folder above it is left behind."""
    names = path.split("/")
    ours = names[:2] if names[1:2] == [EXTENSIONS] else names
    return not any(fnmatchcase(name, pattern) for name in ours for pattern in LEFT_OUT)


def counts(path: str) -> bool:
    """Whether a change of this file counts as a change of the profile."""
    return not any(fnmatchcase(path, pattern) for pattern in NOT_A_CHANGE)


def find_files(directory: Path) -> tuple[File, ...]:
    """The files that travel, sorted by path. Links are left behind. Raises InputError above a limit, and OSError."""
    found: list[File] = []
    for file in _walk(directory, ""):
        found.append(file)
        if len(found) > MAX_FILES:
            raise InputError(f"{directory} has more than {MAX_FILES:,} files that are no cache: it is not a profile")
    return tuple(sorted(found, key=lambda file: file.path))


def _walk(folder: Path, prefix: str, depth: int = 0) -> Iterator[File]:
    if depth > MAX_DEPTH:
        raise InputError(f"{folder} is more than {MAX_DEPTH} folders deep: it is not a profile")
    with os.scandir(folder) as entries:
        for entry in entries:
            path = prefix + entry.name
            if not travels(path):
                continue
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                yield from _walk(folder / entry.name, f"{path}/", depth + 1)
            elif stat.S_ISREG(facts.st_mode):
                yield File(path=path, size=facts.st_size, mtime_ns=facts.st_mtime_ns)


def read_contents(directory: Path, known: Mapping[str, tuple[int, int, str]] | None = None) -> Contents:
    """The files that travel, and the hash of those that count. `known`: hashes of an earlier read, by size and time."""
    files, hashes = find_files(directory), {}
    for file in files:
        if counts(file.path):
            before = (known or {}).get(file.path)
            same = before is not None and before[:2] == (file.size, file.mtime_ns)
            content = before[2] if before is not None and same else _hash_of(directory / file.path)
            hashes[file.path] = (file.size, file.mtime_ns, content)
    return Contents(files=files, digest=digest_of((path, value[2]) for path, value in hashes.items()), hashes=hashes)


def digest_of(hashes: Iterable[tuple[str, str]]) -> str:
    """One hash of many files, by their paths and contents, not their times."""
    whole = hashlib.sha256()
    for path, content in sorted(hashes):
        whole.update(f"{path}\0{content}\0".encode(errors="surrogateescape"))
    return whole.hexdigest()


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def safe_path(name: str) -> str:
    """The path of an archive's member, below the directory. Raises InputError for a path that leads out of it."""
    path = PurePosixPath(name)
    wrong = not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name or "\\" in name
    if wrong or len(path.parts) > MAX_DEPTH:
        raise InputError(f"the archive has a member {name!r}, which leads out of the profile: it was not unpacked")
    return str(path)


def write_file(directory: Path, path: str, chunks: Iterable[bytes]) -> int:
    """Write a new file below the directory, open to its owner only. Returns its size."""
    target = directory / path
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    size = 0
    with os.fdopen(handle, "wb") as file:
        for chunk in chunks:
            size += file.write(chunk)
    return size


def read_chunks(path: Path, on_bytes: Callable[[int], None] = lambda _size: None) -> Iterator[bytes]:
    """A file's content in chunks. `on_bytes` is called for each."""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            on_bytes(len(chunk))
            yield chunk
