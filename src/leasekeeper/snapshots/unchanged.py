"""Whether the directory of a lost run still equals the snapshot that it was opened from.

Reads every file again, without the directory's lock: the run's own worker, or the next run, may need the lock at any
moment. The fence file must name the lost run before and after: every opener records its own token there first.
"""

from pathlib import Path

from leasekeeper.browsers.keeper.basis import read_basis
from leasekeeper.browsers.keeper.fence_file import FenceUnreadable, read_fence
from leasekeeper.core.ids import LeaseId, Token
from leasekeeper.errors import LeasekeeperError
from leasekeeper.snapshots.contents import read_contents


def snapshot_left_in(directory: Path, run_id: str, lease_id: LeaseId | str) -> Token | None:
    """The token of the snapshot that the directory still equals; None: the run changed something, or that is unknown.

    Call it when the run's browser is proven dead: it would miss later writes of a live one.
    """
    try:
        basis = read_basis(str(directory))
        if basis is None or not _was_last(directory, run_id, lease_id):
            return None
        same = read_contents(directory).digest == basis.digest
        return Token(basis.snapshot) if same and _was_last(directory, run_id, lease_id) else None
    except (FenceUnreadable, LeasekeeperError, OSError):
        return None


def _was_last(directory: Path, run_id: str, lease_id: str) -> bool:
    """Whether this run was the last to open the directory."""
    fence = read_fence(str(directory))
    return fence is not None and (fence.run_id, fence.lease_id) == (run_id, lease_id)
