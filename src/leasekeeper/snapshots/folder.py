"""Snapshots in a folder that several machines have mounted: each appears whole, under a new name."""

import hashlib
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import uuid4

from leasekeeper.errors import EvidenceRefused
from leasekeeper.evidence.folder import FolderEvidence
from leasekeeper.evidence_port import key_parts
from leasekeeper.snapshots.contents import read_chunks

PART: Final = ".part-"
PART_DIGITS: Final = len(uuid4().hex)


class FolderSnapshots(FolderEvidence):
    """A folder as a place of snapshots. A file gets its name by a hard link, which fails if the name exists."""

    def _put(self, key: str, source: Path, size: int, sha256: str, media_type: str) -> None:
        target, _ = self._root.joinpath(*key_parts(key)), media_type
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = target.parent / f"{PART}{uuid4().hex}"
        try:
            found = _copy(source, part)
            if found != (size, sha256):
                raise self._refused(key, "the file has changed since its hash was taken")
            try:
                os.link(part, target)
            except FileExistsError:
                if _measure(target) != (size, sha256):
                    raise self._refused(key, "the folder has another file of that name") from None
            _flush(target.parent)
        finally:
            with suppress(OSError):
                part.unlink()

    async def delete_parts(self, before: datetime) -> int:
        """Delete the parts of interrupted uploads that were not written to since. Returns how many."""
        return await self._ask(lambda: self._delete_parts(before.timestamp()), "")

    def _delete_parts(self, before: float) -> int:
        total = 0
        for path in self._root.glob(f"*/{PART}{'[0-9a-f]' * PART_DIGITS}"):
            with suppress(FileNotFoundError):
                if path.lstat().st_mtime < before:
                    path.unlink()
                    total += 1
        return total

    def _refused(self, key: str, why: str) -> EvidenceRefused:
        return EvidenceRefused(f"{self.location}: {key}: {why}", location=self.location, name=key)


def _copy(source: Path, part: Path) -> tuple[int, str]:
    """Copy a file, readable by its owner only, and flush it to disk. Returns its size and hash."""
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    size, digest = 0, hashlib.sha256()
    with os.fdopen(handle, "wb") as file:
        for chunk in read_chunks(source):
            size += file.write(chunk)
            digest.update(chunk)
        file.flush()
        os.fsync(file.fileno())
    return size, digest.hexdigest()


def _measure(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return os.fstat(file.fileno()).st_size, digest


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
