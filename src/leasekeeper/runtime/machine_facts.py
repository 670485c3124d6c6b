"""What `leasekeeper doctor` measures of this machine: folders, disks, display, fonts. Leaves nothing behind."""

import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from leasekeeper.core.doctor.machine_checks import FileSystem, FolderFacts, Place, Space, Sync
from leasekeeper.stores import split
from leasekeeper.stores.sqlite.schema import NETWORK_FILE_SYSTEMS, file_system

WRITES: Final = 15
BLOCK: Final = b"\0" * 4096
SECONDS_TO_ANSWER: Final = 5.0
STORE: Final = "store"
DATA: Final = "data directory"
_DISPLAY = re.compile(r"(?P<host>[^:]*):(?P<number>\d{1,5})(?:\.\d+)?")


def places(data_dir: Path, store_url: str) -> tuple[Place, ...]:
    """Where this installation writes: the data directory, and the folder of an SQLite store."""
    kind, location = split(store_url)
    found = [Place(name=DATA, path=str(data_dir))]
    if kind == "sqlite":
        found.append(Place(name=STORE, path=str(Path(location).parent)))
    return tuple(found)


def existing(path: Path) -> Path:
    """The folder itself, or the nearest one around it that exists."""
    return next(each for each in (path, *path.parents) if each.is_dir())


def folder_facts(path: Path) -> FolderFacts:
    """Who owns the data directory, its mode, and whether this process can write to it."""
    user = os.geteuid()
    try:
        facts = path.stat()
    except FileNotFoundError:
        return FolderFacts(path=str(path), user=user, owner=None, writable=_writable(existing(path)))
    except OSError:
        return FolderFacts(path=str(path), user=user, owner=None, writable=False)
    return FolderFacts(
        path=str(path),
        user=user,
        owner=facts.st_uid,
        mode=stat.S_IMODE(facts.st_mode),
        folder=stat.S_ISDIR(facts.st_mode),
        writable=_writable(path),
    )


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def file_systems(found: Sequence[Place], mounts: str | None = None) -> list[FileSystem]:
    """The kind of file system under each place. `mounts`: the text to use instead of /proc/self/mounts."""
    kinds = [(place, file_system(existing(Path(place.path)), mounts)) for place in found]
    return [
        FileSystem(place=place, kind=kind, network=kind in NETWORK_FILE_SYSTEMS, is_store=place.name == STORE)
        for place, kind in kinds
    ]


def space_at(place: Place) -> Space:
    """The free space and free inodes there, for a user who is not root."""
    facts = os.statvfs(existing(Path(place.path)))
    return Space(
        place=place,
        free=facts.f_bavail * facts.f_frsize,
        total=facts.f_blocks * facts.f_frsize,
        files_free=facts.f_favail,
        files_total=facts.f_files,
    )


def sync_at(place: Place) -> Sync:
    """Measure how long a write and fsync of one block takes, several times, in a temporary file."""
    taken = []
    try:
        with tempfile.TemporaryFile(prefix=".doctor-", dir=existing(Path(place.path)), buffering=0) as file:
            for _ in range(WRITES):
                began = time.perf_counter()
                file.write(BLOCK)
                os.fsync(file.fileno())
                taken.append(time.perf_counter() - began)
    except OSError as error:
        return Sync(place=place, problem=error.strerror or str(error))
    return Sync(place=place, seconds=taken)


def fonts_listed(environ: Mapping[str, str]) -> int | None:
    """How many fonts fontconfig knows; None if `fc-list` is missing or fails."""
    program = shutil.which("fc-list", path=environ.get("PATH"))
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - the system's own program, without arguments
            [program], env=dict(environ), capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return len(done.stdout.splitlines()) if done.returncode == 0 else None


def display_of(environ: Mapping[str, str]) -> str:
    """The display that visible browsers would use; '' if none is set."""
    return environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY") or ""


def display_answers(environ: Mapping[str, str]) -> bool:
    """Whether a display server accepts connections at the display that is set."""
    if environ.get("DISPLAY"):
        named = _DISPLAY.fullmatch(environ["DISPLAY"])
        return named is not None and _x11_answers(named["host"], int(named["number"]))
    folder = Path(environ.get("XDG_RUNTIME_DIR", "/run"))
    return _connects(str(folder / environ.get("WAYLAND_DISPLAY", "")))


def _x11_answers(host: str, number: int) -> bool:
    if host not in ("", "unix"):
        with suppress(OSError, OverflowError):  # OverflowError: the port is out of range
            socket.create_connection((host, 6000 + number), SECONDS_TO_ANSWER).close()
            return True
        return False
    path = f"/tmp/.X11-unix/X{number}"  # noqa: S108 - where X servers listen, everywhere
    return _connects(f"\0{path}") or _connects(path)


def _connects(address: str) -> bool:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as line:
        line.settimeout(SECONDS_TO_ANSWER)
        with suppress(OSError):
            line.connect(address)
            return True
    return False
