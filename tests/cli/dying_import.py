"""A program that imports a directory with --replace, and is interrupted or killed on the way.

Arguments: store, data directory, source, and where: `interrupt` (Ctrl-C while it copies), or SIGKILL when all was
`copied`, before the `exchange` of the directories, or when they are `exchanged`.
"""

import os
import signal
import sys
from functools import partial
from typing import Any
from unittest.mock import patch

from leasekeeper.cli import main
from leasekeeper.snapshots import directory_swap, sources

COPY, EXCHANGE = "leasekeeper.runtime.profile_transfer.copy_source", "leasekeeper.snapshots.directory_swap._exchange"


def stopped(number: int, before: Any, after: Any, *arguments: Any, **named: Any) -> None:
    """What the program does, with a signal in front of it or behind it."""
    if before is not None:
        before(*arguments, **named)
    os.kill(os.getpid(), number)
    if after is not None:
        after(*arguments, **named)


def broken_at(at: str) -> Any:
    copy, exchange = sources.copy_source, directory_swap._exchange
    match at:
        case "interrupt":
            return patch(COPY, partial(stopped, signal.SIGINT, None, copy))
        case "copied":
            return patch(COPY, partial(stopped, signal.SIGKILL, copy, None))
        case "exchange":
            return patch(EXCHANGE, partial(stopped, signal.SIGKILL, None, None))
        case _:
            return patch(EXCHANGE, partial(stopped, signal.SIGKILL, exchange, None))


if __name__ == "__main__":
    _, url, data_dir, source, where = sys.argv
    os.environ["LEASEKEEPER_DATA_DIR"] = data_dir
    sys.argv = ["leasekeeper", "--store", url, "profiles", "import", source, "--account", "shop_de", "--replace"]
    with broken_at(where):
        main()
