"""The name of this machine: created once and kept in a file of the data directory, beside the machine's profiles.

It is the hostname, for people, and random characters, so that two machines with the same hostname differ. The name
moves with the data directory. In a copy of a data directory, delete the file `machine`. Machines that share all
directories must have the same name: use the setting `machine`.
"""

import os
import re
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from leasekeeper.config import BrowserConfig
from leasekeeper.core.ids import is_id
from leasekeeper.errors import InputError, Problem

FILE: Final = "machine"
_MAX_HOSTNAME: Final = 48
_NOT_ALLOWED: Final = re.compile("[^A-Za-z0-9_.-]+")


def machine_name(config: BrowserConfig) -> str:
    """The name in the settings, else the name in the data directory, else a new name.

    Processes that call it at the same time get the same name. Raises InputError if the file cannot be read or written.
    """
    if config.machine:
        if not is_id(config.machine):
            raise InputError("the machine has no name", [Problem("machine", f"{config.machine!r} is not a name")])
        return config.machine
    data_dir = Path(config.data_dir).absolute()
    path = data_dir / FILE
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _create(path)
        name = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise InputError(f"the machine's name in {path} cannot be used: {error.strerror}") from None
    if not is_id(name):
        raise InputError(
            f"{path} does not hold a machine's name. Restore it, since profiles are at home on that machine; or delete "
            "it to get a new name, and move the profiles"
        )
    return name


def known_machine_name(config: BrowserConfig) -> str | None:
    """The name; None if it cannot be read or written, in which case this machine cannot open profiles either."""
    try:
        return machine_name(config)
    except InputError:
        return None


def _create(path: Path) -> None:
    """Write a new name, atomically. Keeps the name that another process wrote first."""
    host = _NOT_ALLOWED.sub("-", socket.gethostname().partition(".")[0]).strip("-._")[:_MAX_HOSTNAME] or "machine"
    handle, part = tempfile.mkstemp(prefix=f".{FILE}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(f"{host}-{os.urandom(4).hex()}\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(part, path)
    finally:
        Path(part).unlink(missing_ok=True)
