"""The folder of a demo: its store, profiles and evidence, and the settings of its workers.

The files of an earlier demo are removed; a folder with other files in it, or in use, is refused.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leasekeeper import settings_file
from leasekeeper.demo.workers import processes_of
from leasekeeper.errors import InputError
from leasekeeper.settings_table import PREFIX

MARK: Final = ".leasekeeper-demo"
# Short, so that a lost worker is noticed while people watch.
TIMES: Final[Mapping[str, float]] = {
    "lease_ttl": 8.0, "renew_every": 1.0, "holder_stops_after": 6.0, "lock_delay": 1.0, "sweep_every": 0.5,
    "poll_every": 0.5, "backoff_first": 1.0, "worker_ttl": 6.0, "stop_grace": 5.0, "close_after": 5.0,
}  # fmt: skip
# The machine's name in the demo's fleet.
MACHINE: Final = "demo"
# The settings of the user that apply to the demo too.
_KEPT: Final = ("LEASEKEEPER_BROWSER", "LEASEKEEPER_BROWSER_ARGS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The paths of the demo: its store, profiles and evidence."""

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "leasekeeper.db"

    @property
    def store(self) -> str:
        return f"sqlite:///{self.database}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def runs(self) -> Path:
        """Where each run has its evidence."""
        return self.data / "runs"

    def environ(self) -> dict[str, str]:
        """The environment of its workers: the demo's settings, without those of another fleet."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX) or k in _KEPT}
        times = {PREFIX + name.upper(): f"{seconds:g}" for name, seconds in TIMES.items()}
        no_file = {settings_file.VARIABLE: os.devnull}
        own = {
            "LEASEKEEPER_STORE": self.store,
            "LEASEKEEPER_DATA_DIR": str(self.data),
            "LEASEKEEPER_MACHINE": MACHINE,  # how the path is shown
        }
        return {**kept, **times, **no_file, **own}


@contextmanager
def taken(folder: Path) -> Iterator[Place]:
    """The folder, locked until the block ends, and empty except for our marker file."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        strange = [entry.name for entry in folder.iterdir()]
        if strange and MARK not in strange:
            raise InputError(
                f"{folder} contains other files ({strange[0]}): name an empty folder, or one that does not exist"
            )
        opened = os.open(folder / MARK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"{folder} cannot be used: {error.strerror}; name another one with --folder") from None
    with os.fdopen(opened, "r+b") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"another demo runs in {folder}: name another one with --folder") from None
        left = processes_of(folder)
        if left:
            raise InputError(f"process {left[0]} still works in {folder}: end it, or name another one with --folder")
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != MARK:
                entry.unlink()
        yield Place(folder=folder)
