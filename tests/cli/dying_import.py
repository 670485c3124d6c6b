"""A program that imports a directory with --replace, and is interrupted or killed on the way.

Arguments: store, data directory, source, and where: `interrupt` (Ctrl-C while it copies), `filled` (Ctrl-C once a
browser has the storage state), or SIGKILL when all was `copied`, before the `exchange` of the directories, or when
they are `exchanged`.
"""

import asyncio
import os
import signal
import sys
from functools import partial
from typing import Any
from unittest.mock import patch

from leasekeeper.cli import main
from leasekeeper.runtime import state_import
from leasekeeper.snapshots import directory_swap, sources

COPY, EXCHANGE = "leasekeeper.runtime.profile_transfer.copy_source", "leasekeeper.snapshots.directory_swap._exchange"
FILL = "leasekeeper.runtime.state_import._fill"


def stopped(number: int, before: Any, after: Any, *arguments: Any, **named: Any) -> None:
    """What the program does, with a signal in front of it or behind it."""
    if before is not None:
        before(*arguments, **named)
    os.kill(os.getpid(), number)
    if after is not None:
        after(*arguments, **named)


async def interrupted_when_filled(fill: Any, *arguments: Any) -> None:
    """Ctrl-C while a browser is open that has taken the whole storage state."""
    await fill(*arguments)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.get_running_loop().create_future()


def broken_at(at: str) -> Any:
    copy, exchange = sources.copy_source, directory_swap._exchange
    match at:
        case "interrupt":
            return patch(COPY, partial(stopped, signal.SIGINT, None, copy))
        case "filled":
            return patch(FILL, partial(interrupted_when_filled, state_import._fill))
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
