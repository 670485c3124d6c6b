"""Uploads to this server: each file is received whole into the data directory, and then moved or deleted.

What a killed server leaves is deleted after a day.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from starlette.requests import Request

from leasekeeper.errors import BodyTooLarge
from leasekeeper.secret_files import make_private_folder
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)

FOLDER: Final = "incoming"
LEFT_SECONDS: Final = 86_400.0
LOOK_EVERY_SECONDS: Final = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The body of a request as a file."""

    path: Path
    size: int
    sha256: str


@asynccontextmanager
async def received(request: Request, data_dir: str, maximum: int) -> AsyncIterator[Received]:
    """Write the body to a file as it arrives. The file is deleted at the end. Raises BodyTooLarge."""
    folder = Path(data_dir) / FOLDER
    part = folder / uuid4().hex
    await run_in_thread(make_private_folder, folder)
    try:
        size, digest = 0, hashlib.sha256()
        file: BinaryIO = await run_in_thread(lambda: part.open("xb"))
        with file:
            async for chunk in request.stream():
                size += len(chunk)
                if size > maximum:
                    raise BodyTooLarge(f"the body is larger than {maximum:,} bytes", max_bytes=maximum)
                digest.update(chunk)
                await run_in_thread(file.write, chunk)
        yield Received(path=part, size=size, sha256=digest.hexdigest())
    finally:
        await run_in_thread(lambda: part.unlink(missing_ok=True))


async def delete_left_uploads(data_dir: str) -> None:
    """Delete what servers that were killed have left, now and every hour, until cancelled."""
    while True:
        await run_in_thread(delete_left, Path(data_dir) / FOLDER, time.time() - LEFT_SECONDS)
        await asyncio.sleep(LOOK_EVERY_SECONDS)


def delete_left(folder: Path, before: float) -> None:
    """Delete files that were not written to since. A file that cannot be deleted is retried at the next call."""
    try:
        left = [path for path in folder.iterdir() if path.lstat().st_mtime < before]
    except FileNotFoundError:
        return
    except OSError as error:
        _LOG.warning("unfinished uploads in %s could not be listed: %s", folder, error)
        return
    for path in left:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _LOG.warning("unfinished upload %s could not be deleted: %s", path, error)
    if left:
        _LOG.info("deleted %d unfinished uploads from %s", len(left), folder)
