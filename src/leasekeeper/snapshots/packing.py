"""Packs a profile's files into one object: a tar of the files that travel, compressed, encrypted with AES-GCM in
chunks.

    LKSNAP1 | length of the header | header (JSON) | chunk | chunk | … | last chunk

Each chunk is its length and its bytes. With a key each is encrypted under its own nonce, which contains its number and
whether it is the last; the header is associated data of each: so chunks cannot be removed, moved, or put into another
profile's object. Everything is streamed; only a few chunks are in memory.
"""

import io
import json
import os
import struct
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final, cast

from leasekeeper.encryption import Keyring
from leasekeeper.errors import InputError, SecretKeyMissing, SecretUnusable
from leasekeeper.snapshots import compression
from leasekeeper.snapshots.contents import File, safe_path, write_file

MAGIC: Final = b"LKSNAP1\n"
CHUNK: Final = 1024 * 1024
MAX_HEADER: Final = 4096
MAX_UNPACKED: Final = 8 * 1024**3
_LENGTH: Final = struct.Struct(">I")
_PREFIX_BYTES: Final = 7
_OVERHEAD: Final = 16  # of AES-GCM's tag


class SnapshotDamaged(InputError):
    """The input is not a complete object of this profile. Nothing of it was used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A written object: its size and hash, and the size of its files."""

    size: int
    sha256: str
    unpacked: int
    key_id: str | None


def is_packed(path: Path) -> bool:
    """Whether the file begins like one of our objects."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def pack(
    directory: Path,
    files: tuple[File, ...],
    target: Path,
    *,
    profile_id: str,
    keyring: Keyring | None,
    on_bytes: Callable[[int], None] = lambda _size: None,
) -> Packed:
    """Write the files as one object to `target`, a new file. Raises OSError, InputError."""
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        chunks = _ChunkWriter(file, profile_id, keyring, compression.best())
        with (
            compression.writer(chunks.compression, cast("BinaryIO", chunks)) as compressed,
            tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK) as tar,
        ):
            for each in files:
                on_bytes(_add(tar, directory, each))
        chunks.finish()
        file.flush()
        os.fsync(file.fileno())
    return Packed(
        size=chunks.size,
        sha256=chunks.digest.hexdigest(),
        unpacked=sum(each.size for each in files),
        key_id=None if keyring is None else keyring.current,
    )


def _add(tar: tarfile.TarFile, directory: Path, file: File) -> int:
    info = tarfile.TarInfo(file.path)
    info.size, info.mode = file.size, 0o600
    with (directory / file.path).open("rb") as source:
        tar.addfile(info, source)
    return file.size


def unpack(
    source: Path,
    target: Path,
    *,
    profile_id: str,
    keyring: Keyring | None,
    max_bytes: int = MAX_UNPACKED,
    on_bytes: Callable[[int], None] = lambda _size: None,
) -> int:
    """Write the files of an object below `target`, a new directory. Returns their size.

    Raises SnapshotDamaged if the object is damaged or of another profile, SecretKeyWrong if no key here decrypts it,
    SecretKeyMissing if one is needed and none is set.
    """
    target.mkdir(mode=0o700)
    total = 0
    broken: tuple[type[Exception], ...] = (tarfile.TarError, EOFError, FileExistsError, InputError)
    broken += compression.errors()
    with source.open("rb") as file:
        chunks = _ChunkReader(file, profile_id, keyring)
        try:
            with compression.reader(chunks.compression, io.BufferedReader(chunks, CHUNK)) as compressed:
                with tarfile.open(fileobj=compressed, mode="r|", bufsize=CHUNK) as tar:
                    for member in tar:
                        total += member.size
                        if not member.isreg() or total > max_bytes:
                            raise SnapshotDamaged(
                                f"snapshot of {profile_id}: {member.name!r} is not a file, or too large"
                            )
                        content = cast("BinaryIO", tar.extractfile(member))
                        on_bytes(write_file(target, safe_path(member.name), iter(partial(content.read, CHUNK), b"")))
                while compressed.read(CHUNK):
                    pass  # the padding after the tar: the object must be complete
        except broken as error:
            if isinstance(error, SecretUnusable | SnapshotDamaged):
                raise
            raise SnapshotDamaged(f"snapshot of {profile_id} cannot be unpacked: {type(error).__name__}") from error
        chunks.check_ended()
    return total


class _ChunkWriter(io.RawIOBase):
    """A stream that writes chunks."""

    def __init__(self, file: BinaryIO, profile_id: str, keyring: Keyring | None, method: str) -> None:
        self._file, self._keyring = file, keyring
        self.compression = method
        self._prefix = os.urandom(_PREFIX_BYTES)
        self._key_id = None if keyring is None else keyring.current
        said = {
            "profile_id": profile_id,
            "key_id": self._key_id,
            "nonce": self._prefix.hex(),
            "compression": method,
        }
        self._header = json.dumps(said).encode()
        self._waiting = bytearray()
        self._number = 0
        self.size = 0
        self.digest = sha256()
        self._put(MAGIC + _LENGTH.pack(len(self._header)) + self._header)

    def writable(self) -> bool:
        return True

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]  # of typeshed's Buffer
        self._waiting += data
        while len(self._waiting) > CHUNK:
            self._seal(bytes(self._waiting[:CHUNK]), last=False)
            del self._waiting[:CHUNK]
        return len(data)

    def finish(self) -> None:
        self._seal(bytes(self._waiting), last=True)

    def _seal(self, data: bytes, *, last: bool) -> None:
        if self._keyring is not None and self._key_id is not None:
            nonce = _nonce(self._prefix, self._number, last=last)
            data = self._keyring.encrypt(self._key_id, nonce, data, self._header)
        self._number += 1
        self._put(_LENGTH.pack(len(data)) + data)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self.digest.update(data)
        self.size += len(data)


class _ChunkReader(io.RawIOBase):
    """The stream of the content of the chunks."""

    def __init__(self, file: BinaryIO, profile_id: str, keyring: Keyring | None) -> None:
        self._file, self._name = file, profile_id
        if file.read(len(MAGIC)) != MAGIC:
            raise self._damaged("it does not begin as one")
        self._header = self._exactly(self._length(MAX_HEADER))
        try:
            said = json.loads(self._header)
            self._key_id, self._prefix = said["key_id"], bytes.fromhex(said["nonce"])
            owner, self.compression = said["profile_id"], said["compression"]
        except (ValueError, KeyError, TypeError):
            raise self._damaged("its header cannot be read") from None
        if owner != profile_id or len(self._prefix) != _PREFIX_BYTES:
            raise self._damaged(f"it is one of {owner}")
        compression.check(self.compression)
        if self._key_id is not None and keyring is None:
            raise SecretKeyMissing(f"snapshot of {profile_id} is encrypted with key {self._key_id}: set it here")
        self._keyring = keyring
        self._number = 0
        self._chunks = self._read()
        self._current = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]  # of typeshed's Buffer
        while not self._current:
            following = next(self._chunks, None)
            if following is None:
                return 0
            self._current = memoryview(following)
        size = min(len(buffer), len(self._current))
        buffer[:size] = self._current[:size]
        self._current = self._current[size:]
        return size

    def check_ended(self) -> None:
        """Raise SnapshotDamaged unless the last chunk was read, and nothing follows it."""
        if next(self._chunks, None) or not self._ended:
            raise self._damaged("its end is missing")

    def _read(self) -> Iterator[bytes]:
        length = self._length(CHUNK + _OVERHEAD)
        while True:
            data = self._exactly(length)
            raw = self._file.read(_LENGTH.size)
            if self._key_id is not None and self._keyring is not None:
                nonce = _nonce(self._prefix, self._number, last=not raw)
                try:
                    data = self._keyring.decrypt(self._key_id, nonce, data, self._header)
                except ValueError:
                    raise self._damaged(f"chunk {self._number} is not what was written") from None
            self._number += 1
            self._ended = not raw
            yield data
            if not raw:
                return
            length = self._parsed(raw, CHUNK + _OVERHEAD)

    def _length(self, maximum: int) -> int:
        return self._parsed(self._exactly(_LENGTH.size), maximum)

    def _parsed(self, raw: bytes, maximum: int) -> int:
        length: int = _LENGTH.unpack(raw)[0] if len(raw) == _LENGTH.size else maximum + 1
        if length > maximum:
            raise self._damaged("a length in it is wrong")
        return length

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise self._damaged("its end is missing")
        return data

    def _damaged(self, why: str) -> SnapshotDamaged:
        return SnapshotDamaged(f"this is not a whole snapshot of {self._name}: {why}")


def _nonce(prefix: bytes, number: int, *, last: bool) -> bytes:
    return prefix + _LENGTH.pack(number) + bytes([last])
