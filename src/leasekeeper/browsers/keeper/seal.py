"""The seal on a profile directory: what it looked like when its last run had ended with a proven close.

A fingerprint (sizes and times, no contents) of the files that a session lives in, with the token it was made under.
If it does not fit at the next launch, somebody used the profile outside a lease. Written only under the directory's
lock, and only by whoever recorded its token last.
"""

# pathlib would take ten times as long.
# ruff: noqa: PTH103, PTH116, PTH123

import json
import os

from leasekeeper.browsers.keeper.basis import keep_basis
from leasekeeper.browsers.keeper.fence_file import OWN_FOLDER, FenceUnreadable, read_fence, write_durably

VERSION = 1
_NAME = "closed.json"

# What a session lives in. A browser that was only opened and closed changes several of them.
_FILES = (
    "Local State",
    "Last Version",
    "Default/Preferences",
    "Default/Secure Preferences",
    "Default/Cookies",
    "Default/Network/Cookies",
    "Default/Login Data",
    "Default/Web Data",
    "Default/History",
)
_FOLDERS = ("Default/Local Storage/leveldb", "Default/IndexedDB", "Default/Session Storage")

Fingerprint = dict[str, list[int]]


class Seal:
    """A seal as it was written: under which token (None: before any), over which files."""

    def __init__(self, token: int | None, files: dict[str, object]) -> None:
        self.token = token
        self.files = files


def read_seal(user_data_dir: str) -> Seal | None:
    """The seal; None if there is none that this program understands."""
    try:
        with open(f"{user_data_dir}/{OWN_FOLDER}/{_NAME}", "rb") as file:
            found = json.loads(file.read())
        files, token = found["files"], found["token"]
        if found["version"] != VERSION or not isinstance(files, dict) or not isinstance(token, int | None):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Seal(token, files)


def seal_directory(user_data_dir: str, token: int | None) -> bool:
    """Seal the directory as it is, under this token. Nothing may write to it any more. False: not ours to seal."""
    return _write(user_data_dir, token, fingerprint(user_data_dir))


def keep_seal(user_data_dir: str, token: int, before: int | None) -> bool:
    """Let the seal count for this token too: the directory was taken for it, but no browser wrote to it.

    Only if it was valid for the token `before`; what has changed since the seal is then noticed as before.
    """
    seal = read_seal(user_data_dir)
    if seal is None and before is not None:
        return False
    if seal is not None and seal.token != before:
        return False
    try:
        keep_basis(user_data_dir, token, before)
    except OSError:
        return False
    return _write(user_data_dir, token, {} if seal is None else seal.files)


def _write(user_data_dir: str, token: int | None, files: object) -> bool:
    try:
        fence = read_fence(user_data_dir)
        if (None if fence is None else fence.token) != token:
            return False  # somebody else has taken the directory since
        os.makedirs(f"{user_data_dir}/{OWN_FOLDER}", mode=0o700, exist_ok=True)
        content = {"version": VERSION, "token": token, "files": files}
        write_durably(f"{user_data_dir}/{OWN_FOLDER}/{_NAME}", json.dumps(content).encode())
    except (OSError, FenceUnreadable):
        return False
    return True


def fingerprint(user_data_dir: str) -> Fingerprint:
    """Sizes and times of what a session lives in. Empty for a directory that no browser has used."""
    found: Fingerprint = {}
    for name in _FILES:
        try:
            facts = os.stat(f"{user_data_dir}/{name}")
        except OSError:
            continue
        found[name] = [facts.st_size, facts.st_mtime_ns]
    for name in _FOLDERS:
        try:
            with os.scandir(f"{user_data_dir}/{name}") as entries:
                facts_of = [entry.stat(follow_symlinks=False) for entry in entries]
        except OSError:
            continue
        newest = max((facts.st_mtime_ns for facts in facts_of), default=0)
        found[name] = [len(facts_of), sum(facts.st_size for facts in facts_of), newest]
    return found
