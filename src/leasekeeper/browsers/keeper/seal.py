"""The seal on a profile directory: a fingerprint of its session files after the last proven close.

It has the files' sizes and times, no contents, and the fencing token of that time. If it does not match at the next
launch, somebody used the profile outside a lease. Written only under the directory's lock, and only while the fence
file has that token.
"""

# pathlib would take ten times as long.
# ruff: noqa: PTH103, PTH116, PTH123

import json
import os

from leasekeeper.browsers.keeper.basis import keep_basis
from leasekeeper.browsers.keeper.fence_file import OWN_FOLDER, FenceUnreadable, read_fence, write_durably

VERSION = 1
_NAME = "closed.json"

# The files of a session. A browser that is only opened and closed changes several of them.
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
    """A seal: the token that it was written under (None: before any lease), and the fingerprint."""

    def __init__(self, token: int | None, files: dict[str, object]) -> None:
        self.token = token
        self.files = files


def read_seal(user_data_dir: str) -> Seal | None:
    """The directory's seal; None if there is none that this program understands."""
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
    """Seal the directory as it is, under this token. No browser may write to it any more. Returns whether it was
    sealed: not if the fence file has another token, or on an error."""
    return _write(user_data_dir, token, fingerprint(user_data_dir))


def keep_seal(user_data_dir: str, token: int, before: int | None) -> bool:
    """Keep the old seal under this token: the directory was taken for the token, but no browser changed it.

    Only if the seal was valid under the token `before`. Changes since the seal are still noticed. Returns whether it
    was kept.
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
    """Sizes and times of the session files. Empty for a directory that no browser has used."""
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
