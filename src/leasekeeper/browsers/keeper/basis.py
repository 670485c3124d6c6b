"""Which snapshot a profile's directory has: a file beside the fence file and the seal, written under the same lock.

It is valid only while the fence file has the token that it was written under: a browser that was opened since has
changed the directory. The hashes save reading files again that have the same size and time.
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
    """The token of the snapshot that a directory has, the fencing token that it had then, and its files' hashes."""

    def __init__(self, snapshot: int, token: int, digest: str, hashes: Hashes) -> None:
        self.snapshot = snapshot
        self.token = token
        self.digest = digest
        self.hashes = hashes


def read_basis(user_data_dir: str) -> Basis | None:
    """What is recorded; None if there is nothing that this program understands."""
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
    """Record it durably. Raises OSError."""
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
    """The token of the snapshot that the directory holds now; None: of none, or it was opened since."""
    basis = read_basis(user_data_dir)
    try:
        fence = read_fence(user_data_dir)
    except FenceUnreadable:
        return None
    return basis.snapshot if basis is not None and fence is not None and basis.token == fence.token else None


def keep_basis(user_data_dir: str, token: int, before: int | None) -> None:
    """The directory was taken for this token, but no browser wrote to it: what was true under `before` still is."""
    basis = read_basis(user_data_dir)
    if basis is not None and basis.token == before:
        write_basis(user_data_dir, Basis(basis.snapshot, token, basis.digest, basis.hashes))
