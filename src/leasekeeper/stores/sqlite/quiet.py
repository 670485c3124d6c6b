"""A moment in which nobody writes to an SQLite file."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from leasekeeper.stores.sqlite.checkpoints import Checkpoints
from leasekeeper.stores.sqlite.engine import connect, translated


@contextmanager
def nobody_writes(path: Path) -> Iterator[None]:
    """Wait until nobody writes, and keep it so: who is stopped now is not stopped in the middle of a commit.

    One that is, keeps everybody else from writing for as long.
    """
    with closing(connect(path)) as connection, closing(Checkpoints(path)) as checkpoints, translated(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            with checkpoints.nobody_commits():
                yield
        finally:
            connection.execute("ROLLBACK")
