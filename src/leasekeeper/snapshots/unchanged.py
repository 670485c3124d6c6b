"""Whether the directory that a lost run left behind still is the snapshot that it was opened from.

Read anew, file by file, under the directory's lock: nobody can be writing. The fence must still name the lost run: a
directory that was opened since says nothing about it.
"""

import os
from pathlib import Path

from leasekeeper.browsers.keeper.basis import read_basis
from leasekeeper.browsers.keeper.fence_file import OWN_FOLDER, FenceUnreadable, lock_directory, read_fence
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.core.ids import LeaseId, Token
from leasekeeper.errors import LeasekeeperError
from leasekeeper.snapshots.contents import read_contents


class StillLocked(Exception):
    """Somebody has the directory's lock: ask again."""


def snapshot_left_in(directory: Path, run_id: str, lease_id: LeaseId | str) -> Token | None:
    """The token of the snapshot whose contents the run left there; None: it changed something, or nobody can tell.

    Raises StillLocked.
    """
    if not (directory / OWN_FOLDER).is_dir():
        return None
    try:
        lock = lock_directory(str(directory))
    except Refused as refused:
        raise StillLocked(refused.message) from None
    try:
        basis, fence = read_basis(str(directory)), read_fence(str(directory))
        if basis is None or fence is None or (fence.run_id, fence.lease_id) != (run_id, lease_id):
            return None
        return Token(basis.snapshot) if read_contents(directory).digest == basis.digest else None
    except (FenceUnreadable, LeasekeeperError, OSError):
        return None
    finally:
        os.close(lock)
