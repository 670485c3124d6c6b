"""Reads files with secrets: ordinary files, not too long, not readable by others. No message shows their content.

Makes folders that only their owner can open.
"""

import os
import stat
from pathlib import Path
from typing import Final

from leasekeeper.errors import InputError

MAX_BYTES: Final = 4_096
OTHERS: Final = stat.S_IROTH | stat.S_IWOTH
ALL_BUT_OWNER: Final = stat.S_IRWXG | stat.S_IRWXO


def read_secret_file(place: str, what: str, *, refuse: int) -> str:
    """The text of a file. `what` begins each message, `refuse` are mode bits that it must not have."""
    try:
        # Non-blocking: opening a named pipe would wait for a writer.
        file = os.open(Path(place).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode):
                raise InputError(f"{what}: is not a file")
            if facts.st_mode & refuse:
                who = "everybody" if facts.st_mode & OTHERS else "its group"
                raise InputError(f"{what}: {who} on this machine can read it; chmod 600 it first")
            data = os.read(file, MAX_BYTES + 1)
        finally:
            os.close(file)
    except OSError as error:
        raise InputError(f"{what}: cannot be read: {error.strerror}") from None
    except RuntimeError:
        raise InputError(f"{what}: begins with '~', but that home directory is not known") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{what}: has more than {MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError(f"{what}: is not text") from None


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, with mode 0700: `mkdir` gives that to the last one only."""
    missing = [above for above in reversed(folder.parents) if not above.exists()]
    for each in (*missing, folder):
        each.mkdir(mode=0o700, exist_ok=True)
