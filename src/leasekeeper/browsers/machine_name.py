"""The name of this machine: made once, and kept in a file of the data directory, beside the profiles it speaks for.

It begins with the hostname, for people, and ends with random characters, so that two machines of one hostname differ.
Whoever moves the data directory moves the name with it. Whoever copies one deletes the file `machine` of the copy.
Machines that share every directory are one for this: the setting `machine` gives them the same name.
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
    """The name that the settings give, else the one in the data directory; a new one if there is none.

    Several processes may ask at once: all get the same. Raises InputError if the file cannot be read or written.
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
    """The name, or None if this machine cannot keep one: then it opens no profile's directory either."""
    try:
        return machine_name(config)
    except InputError:
        return None


def _create(path: Path) -> None:
    """Put a new name in place, whole, unless somebody else was quicker."""
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
