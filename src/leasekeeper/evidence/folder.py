"""Evidence in a folder: the server's own, or one that several machines have mounted. Files appear whole, by rename."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, TypeVar

from leasekeeper.core.leases import LeaseRef
from leasekeeper.errors import EvidenceRefused, EvidenceUnavailable, InputError, NotFound
from leasekeeper.evidence.files import CHUNK, Artifact, EvidenceFolder, EvidenceNotSaved, open_file
from leasekeeper.evidence_port import Stored, key_parts
from leasekeeper.secret_files import make_private_folder
from leasekeeper.threads import run_in_thread

T = TypeVar("T")


class FolderEvidence:
    """A folder as a place of evidence. All disk work runs in a thread."""

    prunes = True

    def __init__(self, root: Path, *, of: str = "evidence") -> None:
        self._root = root.absolute()
        self._of = of

    @property
    def location(self) -> str:
        return str(self._root)

    async def check(self) -> None:
        await self._ask(self._check, "")

    async def put(
        self,
        key: str,
        source: Path,
        *,
        size: int,
        sha256: str,
        media_type: str,
        under: LeaseRef | None = None,  # noqa: ARG002 - folders know no leases
    ) -> None:
        await self._ask(lambda: self._put(key, source, size, sha256, media_type), key)

    async def get(self, key: str, *, under: LeaseRef | None = None) -> AsyncIterator[bytes]:  # noqa: ARG002 - as above
        path = self._root.joinpath(*key_parts(key))
        file = await self._ask(lambda: self._open(path, key), key)
        with file:
            while chunk := await self._ask(lambda: file.read(CHUNK), key):
                yield chunk

    async def entries(self, prefix: str = "") -> AsyncIterator[Stored]:
        for entry in await self._ask(lambda: self._entries(prefix), prefix):
            yield entry

    async def delete(self, keys: Sequence[str]) -> None:
        await self._ask(lambda: self._delete(keys), "")

    async def _ask(self, work: Callable[[], T], name: str) -> T:
        try:
            return await run_in_thread(work)
        except OSError as error:
            text = f"{self._root} cannot be used for {self._of}: {error.strerror or error}"
            raise EvidenceUnavailable(text, location=self.location, name=name) from error

    def _check(self) -> None:
        make_private_folder(self._root)
        probe = self._root / f".probe-{os.getpid()}"
        try:
            probe.write_bytes(b"\0")
        finally:
            probe.unlink(missing_ok=True)

    def _put(self, key: str, source: Path, size: int, sha256: str, media_type: str) -> None:
        *above, parent, name = key_parts(key)
        wanted = Artifact(name=name, size=size, sha256=sha256, media_type=media_type)
        folder = EvidenceFolder(self._root.joinpath(*above), parent)
        folder.create()
        if folder.verify(wanted):
            return
        try:
            stored = folder.copy(name, source, wanted.media_type)
        except EvidenceNotSaved:
            raise
        except InputError as error:
            raise EvidenceRefused(str(error), location=self.location, name=key) from error
        if stored != wanted:
            (folder.path / name).unlink(missing_ok=True)
            raise EvidenceRefused(
                f"{self._of} {name} has changed while it was stored", location=self.location, name=key
            )

    def _open(self, path: Path, key: str) -> BinaryIO:
        try:
            return open_file(path)
        except FileNotFoundError:
            raise NotFound(f"there is no {self._of} {key}", what=self._of, id=key) from None

    def _entries(self, prefix: str) -> list[Stored]:
        start, found = self._root / prefix, []
        for path in start.rglob("*"):
            key = str(path.relative_to(self._root))
            with suppress(InputError, FileNotFoundError):
                key_parts(key)
                if path.is_file() and not path.is_symlink():
                    facts = path.stat()
                    changed_at = datetime.fromtimestamp(facts.st_mtime, UTC)
                    found.append(Stored(key=key, size=facts.st_size, changed_at=changed_at))
        return found

    def _delete(self, keys: Sequence[str]) -> None:
        folders = set()
        for key in keys:
            path = self._root.joinpath(*key_parts(key))
            path.unlink(missing_ok=True)
            folders.add(path.parent)
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()
