"""Whether the directory that a lost run left behind still is the snapshot that it was opened from.

Read anew, file by file, without the directory's lock: the run's own worker, or the next run, may need that at any
moment. The fence must name the lost run before and after: whoever opens the directory records its own token first.
"""

from pathlib import Path

from leasekeeper.browsers.keeper.basis import read_basis
from leasekeeper.browsers.keeper.fence_file import FenceUnreadable, read_fence
from leasekeeper.core.ids import LeaseId, Token
from leasekeeper.errors import LeasekeeperError
from leasekeeper.snapshots.contents import read_contents


def snapshot_left_in(directory: Path, run_id: str, lease_id: LeaseId | str) -> Token | None:
    """The token of the snapshot whose contents the run left there; None: it changed something, or nobody can tell.

    Call it when the run's browser is proven dead: what a living one writes meanwhile would not be seen.
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
    """Whether nobody has opened the directory since this run did."""
    fence = read_fence(str(directory))
    return fence is not None and (fence.run_id, fence.lease_id) == (run_id, lease_id)
