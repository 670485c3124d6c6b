"""The sources of an import: a user data directory, a ZIP of one, an encrypted export, or a Playwright storage state.

A source is never written to. After the copy it is checked again: it must not have been used meanwhile.
"""

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from leasekeeper.browsers.keeper.directory import other_user_of
from leasekeeper.browsers.keeper.fence_file import OWN_FOLDER, lock_directory
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.encryption import Keyring
from leasekeeper.errors import InputError
from leasekeeper.snapshots.contents import (
    MAX_FILES,
    File,
    find_files,
    read_chunks,
    safe_path,
    travels,
    write_file,
)
from leasekeeper.snapshots.packing import is_packed, unpack
from leasekeeper.snapshots.storage_state import StorageState, parse_state

MAX_BYTES: Final = 8 * 1024**3
MAX_STATE_BYTES: Final = 64 * 1024**2
_SIGN: Final = "Default/Preferences"
_UNENCRYPTED: Final = 0x1


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was found at a path: a directory's files (`directory`, `packed` or inside a ZIP), or a storage state."""

    path: Path
    directory: Path | None = None
    prefix: str = ""
    files: tuple[File, ...] = ()
    packed: int | None = None
    state: StorageState | None = None

    @property
    def size(self) -> int:
        """The size of the copy in bytes; approximate for an encrypted export; for a storage state, its cookies and
        origins.
        """
        if self.state is not None:
            return len(self.state)
        return sum(file.size for file in self.files) if self.packed is None else self.packed


def find_source(path: Path) -> Source:
    """The source at a path. Raises InputError, with what to do, if nothing there can be imported."""
    if path.is_dir():
        return _directory(path)
    if not path.is_file():
        raise InputError(f"there is no {path}")
    if is_packed(path):
        return Source(path=path, packed=path.stat().st_size)
    if zipfile.is_zipfile(path):
        return _zipped(path)
    return Source(path=path, state=_state(path.read_bytes() if path.stat().st_size <= MAX_STATE_BYTES else b"", path))


def _directory(path: Path) -> Source:
    _refuse_open(path)
    if not (path / _SIGN).is_file():
        if (path / "Preferences").is_file():
            raise InputError(
                f"{path} is one profile inside a browser's user data. Import the folder around it, {path.parent}: its "
                "profile 'Default' is used"
            )
        raise InputError(f"{path} is no user data directory of Chrome or Chromium: it has no {_SIGN}")
    return Source(path=path, directory=path, files=find_files(path))


def _refuse_open(path: Path) -> None:
    user = other_user_of(str(path))
    if user is not None:
        raise InputError(f"{user}, then import it")


def _zipped(path: Path) -> Source:
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        names = [safe_path(member.filename) for member in members]
        if len(members) > MAX_FILES or sum(member.file_size for member in members) > MAX_BYTES:
            raise InputError(f"{path} holds more than a profile can have")
        if any(member.flag_bits & _UNENCRYPTED for member in members):
            raise InputError(f"{path} is protected by a password: unpack it first, and import what was in it")
        if len(members) == 1 and names[0].endswith(".json"):
            fits = members[0].file_size <= MAX_STATE_BYTES
            return Source(path=path, state=_state(archive.read(members[0]) if fits else b"", path))
        signs = [name for name in names if name == _SIGN or name.endswith(f"/{_SIGN}")]
        if len(signs) != 1:
            raise InputError(
                f"{path} holds {len(signs) or 'no'} user data directories: it must hold one ({_SIGN} in it)"
            )
        prefix = signs[0].removesuffix(_SIGN)
        inside = [
            File(path=name.removeprefix(prefix), size=member.file_size, mtime_ns=0)
            for name, member in zip(names, members, strict=True)
            if name.startswith(prefix) and travels(name.removeprefix(prefix)) and not _is_link(member)
        ]
        return Source(path=path, prefix=prefix, files=tuple(sorted(inside, key=lambda file: file.path)))


def _is_link(member: zipfile.ZipInfo) -> bool:
    return (member.external_attr >> 28) == 0o12


def _state(data: bytes, path: Path) -> StorageState:
    """A Playwright storage state. Its values are a login: no message repeats them."""
    try:
        found = parse_state(data)
    except ValueError as error:
        raise InputError(f"{path} is a storage state that cannot be imported: {error}") from None
    if found is None:
        raise InputError(
            f"{path} is neither a user data directory, nor a ZIP of one, nor a storage state that Playwright wrote "
            "(context.storage_state(path=…))"
        )
    return found


def copy_source(
    source: Source, target: Path, on_bytes: Callable[[int], None], *, profile_id: str, keyring: Keyring | None
) -> None:
    """Write the files of the source that travel to `target`, a new directory.

    A profile directory of Leasekeeper is copied under its lock; any other must be closed and unchanged, before and
    after. An encrypted export is decrypted with a key of the keyring, and only for its own profile. Raises InputError,
    SnapshotDamaged, OSError.
    """
    if source.packed is not None:
        unpack(source.path, target, profile_id=profile_id, keyring=keyring, on_bytes=on_bytes)
        return
    target.mkdir(mode=0o700)
    if source.directory is None:
        _unzip(source, target, on_bytes)
        return
    with ExitStack() as locked:
        if (source.directory / OWN_FOLDER).is_dir():
            _lock_shared(source.directory, locked)
        for file in source.files:
            write_file(target, file.path, read_chunks(source.directory / file.path, on_bytes))
        _refuse_open(source.directory)
        if find_files(source.directory) != source.files:
            raise InputError(
                f"{source.directory} has changed while it was copied: close what uses it, and import again"
            )


def _lock_shared(directory: Path, locked: ExitStack) -> None:
    try:
        locked.callback(os.close, lock_directory(str(directory), shared=True))
    except Refused as refused:
        raise InputError(f"{refused.message}: import it when that has ended") from refused


def _unzip(source: Source, target: Path, on_bytes: Callable[[int], None]) -> None:
    with zipfile.ZipFile(source.path) as archive:
        for file in source.files:
            try:
                write_file(target, file.path, _member(archive, source.prefix + file.path, file.size, on_bytes))
            except (zipfile.BadZipFile, EOFError) as error:
                raise InputError(f"{source.path} is damaged: {error}") from error


def _member(archive: zipfile.ZipFile, name: str, size: int, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    left = size
    with archive.open(name) as file:
        while chunk := file.read(1024 * 1024):
            left -= len(chunk)
            if left < 0:
                raise zipfile.BadZipFile(f"{PurePosixPath(name).name} is larger than the archive says")
            on_bytes(len(chunk))
            yield chunk


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """The path of a temporary file that becomes `target` when the block ends normally. Replaces no existing file."""
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        yield part
        os.link(part, target)
    finally:
        part.unlink(missing_ok=True)


def write_zip(directory: Path, files: tuple[File, ...], target: Path, on_bytes: Callable[[int], None]) -> None:
    """Write files of a directory as a ZIP that only its owner may read. It appears whole, or not at all."""
    with atomic_file(target) as part:
        handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w+b") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for each in files:
                    with archive.open(zipfile.ZipInfo(each.path), "w", force_zip64=True) as member:
                        for chunk in read_chunks(directory / each.path, on_bytes):
                            member.write(chunk)
            file.flush()
            os.fsync(file.fileno())
