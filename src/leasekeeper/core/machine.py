"""Errors that are the machine's fault, not a job's: one table, as data.

Error numbers first, then texts of programs that report no number. Pure: the runtime catches the errors and acts.
"""

import errno
from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Trouble(StrEnum):
    """Why a machine cannot run any job now. The value is what people read."""

    DISK_FULL = "disk full"
    DISK_READ_ONLY = "disk is read-only"
    NO_MEMORY = "out of memory"
    TOO_MANY_FILES = "too many open files"
    TOO_MANY_PROCESSES = "too many processes"
    NO_BROWSER = "no browser"
    NO_DISPLAY = "no display"
    NO_PROFILES = "profiles are not here"
    NO_EVIDENCE = "evidence cannot be delivered"
    DATA_DIR_UNUSABLE = "data directory cannot be used"


ERROR_NUMBERS: Final[Mapping[int, Trouble]] = {
    errno.ENOSPC: Trouble.DISK_FULL,
    errno.EDQUOT: Trouble.DISK_FULL,
    errno.EROFS: Trouble.DISK_READ_ONLY,
    errno.ENOMEM: Trouble.NO_MEMORY,
    errno.EMFILE: Trouble.TOO_MANY_FILES,
    errno.ENFILE: Trouble.TOO_MANY_FILES,
    errno.EAGAIN: Trouble.TOO_MANY_PROCESSES,
}

# As Chromium, node and Python write them into errors that have no number.
TEXTS: Final[tuple[tuple[str, Trouble], ...]] = (
    ("No space left on device", Trouble.DISK_FULL),
    ("ENOSPC", Trouble.DISK_FULL),
    ("Disk quota exceeded", Trouble.DISK_FULL),
    ("EDQUOT", Trouble.DISK_FULL),
    ("Read-only file system", Trouble.DISK_READ_ONLY),
    ("EROFS", Trouble.DISK_READ_ONLY),
    ("Cannot allocate memory", Trouble.NO_MEMORY),
    ("ENOMEM", Trouble.NO_MEMORY),
    ("Too many open files", Trouble.TOO_MANY_FILES),
    ("EMFILE", Trouble.TOO_MANY_FILES),
    ("can't start new thread", Trouble.TOO_MANY_PROCESSES),
    ("Resource temporarily unavailable", Trouble.TOO_MANY_PROCESSES),
    ("spawn EAGAIN", Trouble.TOO_MANY_PROCESSES),
    ("Missing X server", Trouble.NO_DISPLAY),
    ("cannot open display", Trouble.NO_DISPLAY),
)


def trouble_of(number: int | None, text: str) -> Trouble | None:
    """What is wrong with the machine if an error has this number or this text; None: the machine is not to blame."""
    if number is not None:
        return ERROR_NUMBERS.get(number)
    return next((trouble for words, trouble in TEXTS if words in text), None)
