"""A DevTools client of a worker's browser, opened by its server over the worker's connection."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.driver_port import ClientRefused, DevToolsClient
from leasekeeper.errors import Conflict
from leasekeeper.runtime.session_link import Link


@asynccontextmanager
async def remote_client(link: Link, name: str, arguments: Mapping[str, Any]) -> AsyncIterator[DevToolsClient]:
    """Open such a client for as long as the block runs: a stream of the connection. Raises ClientRefused, or Conflict
    (WORKER_AWAY) while the worker is not connected."""
    try:
        stream = await link.open(name, arguments)
    except Conflict as refused:
        if refused.cause == ConflictReason.CLIENT_REFUSED:
            raise ClientRefused(refused.message) from None
        raise
    try:
        yield stream
    finally:
        await stream.close()
