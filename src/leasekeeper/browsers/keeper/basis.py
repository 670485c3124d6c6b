"""The record of which snapshot a profile's directory holds: a file beside the fence file, written under the same lock.

It is valid only while the fence file has the token in the record: a browser that was opened later has changed the
directory. With its hashes, files of the same size and time need not be read again.
"""

# pathlib would take ten times as long.
# ruff: noqa: PTH103, PTH123

import json
import os

from leasekeeper.browsers.keeper.fence_file import OWN_FOLDER, FenceUnreadable, read_fence, write_durably

VERSION = 1
_NAME = "snapshot.json"

Hashes = dict[str, tuple[int, int, str]]


class Basis:
    """A record: the token of the snapshot, the directory's fencing token at that time, and the hashes of its files."""

    def __init__(self, snapshot: int, token: int, digest: str, hashes: Hashes) -> None:
        self.snapshot = snapshot
        self.token = token
        self.digest = digest
        self.hashes = hashes


def read_basis(user_data_dir: str) -> Basis | None:
    """The record; None if there is none that this program understands."""
    try:
        with open(f"{user_data_dir}/{OWN_FOLDER}/{_NAME}", "rb") as file:
            found = json.loads(file.read())
        if found["version"] != VERSION:
            return None
        hashes = {str(path): (int(size), int(time), str(text)) for path, (size, time, text) in found["hashes"].items()}
        return Basis(int(found["snapshot"]), int(found["token"]), str(found["digest"]), hashes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_basis(user_data_dir: str, basis: Basis) -> None:
    """Write the record, atomically and durably. Raises OSError."""
    os.makedirs(f"{user_data_dir}/{OWN_FOLDER}", mode=0o700, exist_ok=True)
    content = {
        "version": VERSION,
        "snapshot": basis.snapshot,
        "token": basis.token,
        "digest": basis.digest,
        "hashes": basis.hashes,
    }
    write_durably(f"{user_data_dir}/{OWN_FOLDER}/{_NAME}", json.dumps(content).encode())


def held_snapshot(user_data_dir: str) -> int | None:
    """The token of the snapshot that the directory holds; None if it holds none, or was opened since."""
    basis = read_basis(user_data_dir)
    try:
        fence = read_fence(user_data_dir)
    except FenceUnreadable:
        return None
    return basis.snapshot if basis is not None and fence is not None and basis.token == fence.token else None


def keep_basis(user_data_dir: str, token: int, before: int | None) -> None:
    """Keep the record valid under this token, if it was valid under the token `before`. For a directory that was taken
    for the token, but that no browser has changed."""
    basis = read_basis(user_data_dir)
    if basis is not None and basis.token == before:
        write_basis(user_data_dir, Basis(basis.snapshot, token, basis.digest, basis.hashes))
