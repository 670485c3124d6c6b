"""Evidence on disk: one folder per run, one file per artifact, each with a size and a hash.

A file gets its name only when it is completely on disk (temporary file, fsync, rename, fsync of the folder), so a
record never names an incomplete artifact. Knows no store and no browser.
"""

import errno
import hashlib
import mimetypes
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from leasekeeper.core.ids import ID_RULE, is_id
from leasekeeper.errors import InputError
from leasekeeper.evidence.retention import RUN_ID, Limits, Pruned
from leasekeeper.secret_files import make_private_folder

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_ARTIFACTS: Final = 500
CHUNK: Final = 1024 * 1024
_ADVICE: Final = {
    errno.ENOSPC: "; make room where LEASEKEEPER_DATA_DIR is",
    errno.EDQUOT: "; make room where LEASEKEEPER_DATA_DIR is",
    errno.EROFS: "; the disk of LEASEKEEPER_DATA_DIR must be writable",
}
_DELETED: Final = ".gone-"
_PART: Final = ".part-"


class EvidenceNotSaved(OSError):
    """Evidence could not be written: disk full, read-only, no permission, I/O error. The run is not completed."""

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One evidence file as a record names it."""

    name: str
    size: int
    sha256: str
    media_type: str

    def as_json(self) -> dict[str, str | int]:
        return asdict(self)


@contextmanager
def _saving(what: str) -> Iterator[None]:
    try:
        yield
    except EvidenceNotSaved:
        raise
    except OSError as error:
        text = f"{what} could not be saved: {error.strerror or error}{_ADVICE.get(error.errno or 0, '')}"
        raise EvidenceNotSaved(error.errno or errno.EIO, text) from error


class EvidenceFolder:
    """The evidence of one run, in `root/run_id`. Files of others in the folder are never overwritten."""

    def __init__(self, root: Path, run_id: str) -> None:
        if not is_id(run_id):
            raise InputError(f"{run_id!r} cannot name a run's folder: {ID_RULE}")
        self.run_id = run_id
        self.path = root / run_id
        self._lock = threading.Lock()

    def create(self) -> None:
        """Create the folder with mode 0700. It may exist already."""
        with _saving(f"the evidence folder of run {self.run_id}"):
            make_private_folder(self.path)
            if not stat.S_ISDIR(self.path.lstat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "it is a symbolic link, not a folder")

    def write(self, name: str, data: bytes, media_type: str | None = None) -> Artifact:
        """Save bytes as a new artifact. Raises EvidenceNotSaved if it cannot be written, InputError for a bad name."""
        with self._lock:
            self._check(name, len(data))
            return self._save(name, iter([data]), media_type)

    def copy(self, name: str, source: Path, media_type: str | None = None) -> Artifact:
        """Save a copy of a file as a new artifact, without reading it into memory."""
        with self._lock, _saving(f"evidence {name}"), open_file(source, 0) as opened:
            self._check(name, os.fstat(opened.fileno()).st_size)
            return self._save(name, _chunks(opened, name), media_type)

    def adopt(self, name: str, media_type: str | None = None) -> Artifact | None:
        """Make an artifact of a file that the keeper wrote into the folder; None if it does not exist."""
        self._check_name(name)
        path = self.path / name
        with _saving(f"evidence {name}"):
            try:
                opened = open_file(path)
            except FileNotFoundError:
                return None
            with opened as file:
                size, digest = _measure(_chunks(file, name))
                os.fsync(file.fileno())
            _sync(self.path)
        return Artifact(name=name, size=size, sha256=digest, media_type=media_type or _media_type(name))

    def finished(self) -> dict[str, int]:
        """The files in the folder that can be artifacts, by name, with their sizes; none if it cannot be read."""
        with suppress(OSError), os.scandir(self.path) as entries:
            files = [each for each in entries if is_id(each.name) and each.is_file(follow_symlinks=False)]
            sizes = {each.name: each.stat().st_size for each in files}
            return {name: size for name, size in sorted(sizes.items()) if size <= MAX_BYTES}
        return {}

    def verify(self, artifact: Artifact) -> bool:
        """Whether the file exists with the recorded size and hash."""
        self._check_name(artifact.name)
        try:
            opened = open_file(self.path / artifact.name)
        except (OSError, InputError):
            return False
        with opened as file:
            if os.fstat(file.fileno()).st_size != artifact.size:
                return False
            return _measure(_chunks(file, artifact.name)) == (artifact.size, artifact.sha256)

    def _check_name(self, name: str) -> None:
        if not is_id(name):
            raise InputError(f"{name!r} cannot name an evidence file: {ID_RULE}")

    def _check(self, name: str, size: int) -> None:
        self._check_name(name)
        _check_size(name, size)
        with _saving(f"evidence {name}"):
            present = {path.name for path in self.path.iterdir()}
        if name in present:
            raise InputError(f"run {self.run_id} already has evidence named {name}; choose another name")
        if len(present) >= MAX_ARTIFACTS:
            raise InputError(f"run {self.run_id} already has {MAX_ARTIFACTS} evidence files, which is the maximum")

    def _save(self, name: str, chunks: Iterator[bytes], media_type: str | None) -> Artifact:
        part = self.path / f"{_PART}{uuid4().hex}"
        try:
            with _saving(f"evidence {name}"):
                opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(opened, "wb") as file:
                    size, digest = _measure(chunks, file)
                    file.flush()
                    os.fsync(file.fileno())
                part.rename(self.path / name)
                _sync(self.path)
        finally:
            with suppress(OSError):
                part.unlink()
        return Artifact(name=name, size=size, sha256=digest, media_type=media_type or _media_type(name))


def _check_size(name: str, size: int) -> None:
    if size > MAX_BYTES:
        raise InputError(f"evidence {name} is larger than {MAX_BYTES // 1024**2} MiB, the maximum for one file")


def open_file(path: Path, links: int = os.O_NOFOLLOW) -> BinaryIO:
    """Open a regular file for reading; refuse pipes and devices and, unless `links` is 0, symbolic links."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | links)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise InputError(f"{path} is not a file")
    return os.fdopen(opened, "rb")


def _chunks(file: BinaryIO, name: str) -> Iterator[bytes]:
    seen = 0
    while chunk := file.read(CHUNK):
        seen += len(chunk)
        _check_size(name, seen)
        yield chunk


def _measure(chunks: Iterator[bytes], into: BinaryIO | None = None) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    for chunk in chunks:
        size += len(chunk)
        digest.update(chunk)
        if into is not None:
            into.write(chunk)
    return size, digest.hexdigest()


def _media_type(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def prune_evidence(
    root: Path,
    *,
    older_than: timedelta | None,
    max_bytes: int | None,
    in_use: Iterable[str] = (),
    now: float | None = None,
) -> Pruned:
    """Delete run folders of this machine: those older than `older_than`, then the oldest until `max_bytes` are left.

    Folders in use, those that changed in the last ten minutes, and those that cannot be deleted stay. Safe to run
    concurrently and to interrupt: a folder is renamed first, and the next call deletes what is left of it.
    """
    now = time.time() if now is None else now
    keep, limits = frozenset(in_use), Limits(older_than=older_than, max_bytes=max_bytes)
    folders = sorted(_run_folders(root))
    left = sum(size for _, _, size in folders)
    gone: list[str] = []
    freed = 0
    for changed_at, name, size in folders:
        if name in keep or not limits.exceeded(changed_at, left, now):
            continue
        try:
            (root / name).rename(root / f"{_DELETED}{uuid4().hex}")
        except FileNotFoundError:
            left -= size  # another process was faster
        except OSError:
            continue
        else:
            gone.append(name)
            freed, left = freed + size, left - size
    _delete_renamed(root)
    return Pruned(run_ids=tuple(gone), bytes_freed=freed, bytes_left=left)


def _run_folders(root: Path) -> Iterator[tuple[float, str, int]]:
    """Each run's folder: when it last changed, its name, its size. Unreadable folders are skipped."""
    with suppress(FileNotFoundError), os.scandir(root) as entries:
        for entry in entries:
            if RUN_ID.fullmatch(entry.name) is None:
                continue
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    yield _folder(entry)


def _folder(entry: os.DirEntry[str]) -> tuple[float, str, int]:
    changed_at, size = entry.stat(follow_symlinks=False).st_mtime, 0
    for file in Path(entry.path).rglob("*"):
        with suppress(FileNotFoundError):
            facts = file.lstat()
            changed_at = max(changed_at, facts.st_mtime)
            size += facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return changed_at, entry.name, size


def _delete_renamed(root: Path) -> None:
    with suppress(FileNotFoundError), os.scandir(root) as entries:
        for entry in entries:
            if entry.name.startswith(_DELETED):
                shutil.rmtree(entry.path, ignore_errors=True)
