"""Blocks all writes to an SQLite file for a moment, so that a process that uses it can be stopped safely."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from leasekeeper.stores.sqlite.checkpoints import Checkpoints
from leasekeeper.stores.sqlite.engine import connect, translated


@contextmanager
def writes_blocked(path: Path) -> Iterator[None]:
    """Wait until no process writes, and block writes until the end of the `with` block.

    A process that is stopped meanwhile is not in the middle of a commit, which would block all others.
    """
    with closing(connect(path)) as connection, closing(Checkpoints(path)) as checkpoints, translated(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            with checkpoints.block_commits():
                yield
        finally:
            connection.execute("ROLLBACK")
