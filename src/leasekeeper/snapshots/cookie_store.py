"""Checks whether the cookies of a directory can be read on another machine, or need the key of a keyring.

Chromium marks each value with its encryption. `v10` on Linux is a fixed password, as with Playwright's
`--password-store=basic`; macOS also writes `v10`, with a key of its keychain. `v11` needs the key in the keyring of the
user who made it, `v20` and DPAPI that Windows installation. Another machine cannot read those: a profile with them
would seem logged in, but is logged out.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from leasekeeper.encryption import opens_padded
from leasekeeper.errors import InputError

_PLACES: Final = ("Default/Cookies", "Default/Network/Cookies")
_COUNT: Final = (
    "SELECT substr(encrypted_value, 1, 3), count(*) FROM cookies WHERE length(encrypted_value) > 0 GROUP BY 1"
)
_KEYRING: Final = "the key is in the keyring of the desktop where they were made (GNOME Keyring or KWallet)"
_WINDOWS: Final = "the key belongs to the Windows installation where they were made"
_KEYCHAIN: Final = "the key is in the keychain of the Mac where they were made"
# Linux encrypts `v10` with a fixed password, or an empty one: some versions did.
_KEYS: Final = tuple(hashlib.pbkdf2_hmac("sha1", word, b"saltysalt", 1, 16) for word in (b"peanuts", b""))
_IV: Final = b" " * 16
# A wrong key fits one value of 256 by chance.
_SAMPLED: Final = 32
_SAMPLE: Final = "SELECT encrypted_value FROM cookies WHERE substr(encrypted_value, 1, 3) = x'763130' LIMIT ?"
# By the first characters of a value. All others are `v10` or plain.
_LOCKED: Final = {b"v11": _KEYRING, b"v20": _WINDOWS}
_MAX_LOCAL_STATE: Final = 64 * 1024 * 1024


def check_cookies(directory: Path) -> None:
    """Raise InputError if cookies of the directory can only be read on the machine that made them, or not at all."""
    if _has_windows_key(directory / "Local State"):
        raise _refused("", _WINDOWS)
    for place in _PLACES:
        path = directory / place
        if path.is_file():
            for mark, number in _marks(path):
                if mark in _LOCKED:
                    raise _refused(f"{number:,} of ", _LOCKED[mark])
            if _is_of_a_mac(path):
                raise _refused("", _KEYCHAIN)


def _refused(many: str, why: str) -> InputError:
    return InputError(
        f"{many}the cookies of this profile cannot be read anywhere else: {why}. Export them there with Playwright "
        "(context.storage_state(path=…), from a browser in this profile) and import that file; or start the browser "
        "there with --password-store=basic, log in again, close it, and import the directory"
    )


def _is_of_a_mac(path: Path) -> bool:
    """Whether most `v10` values are not encrypted as on Linux. False without the package `cryptography`."""
    opened = [
        any(opens_padded(key, _IV, bytes(value)[3:]) is not False for key in _KEYS)
        for (value,) in _rows(path, _SAMPLE, _SAMPLED)
    ]
    return 2 * sum(opened) < len(opened)


def _marks(path: Path) -> Iterator[tuple[bytes, int]]:
    """The marks of values, and the number of each."""
    for mark, number in _rows(path, _COUNT):
        yield bytes(mark), int(number)


def _rows(path: Path, query: str, *values: int) -> list[tuple[Any, ...]]:
    try:
        # No process writes to it: it is our copy, or its browser is closed.
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as database:
            return database.execute(query, values).fetchall()
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path.name} of this profile cannot be read: {error}. Was it copied while in use?") from error


def _has_windows_key(local_state: Path) -> bool:
    """Whether Local State contains an encryption key, as on Windows only."""
    try:
        with local_state.open("rb") as file:
            found = json.loads(file.read(_MAX_LOCAL_STATE)).get("os_crypt", {})
    except (OSError, ValueError, AttributeError):
        return False
    return isinstance(found, dict) and bool(found.keys() & {"encrypted_key", "app_bound_encrypted_key"})
