"""Ends streams and sockets soon after their token was revoked or has expired.

`check` is called repeatedly: it raises NotAuthenticated once the token is refused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from starlette.websockets import WebSocket

from leasekeeper.errors import LeasekeeperError, NotAuthenticated
from leasekeeper.runtime.session_endpoint import close_reason

T = TypeVar("T")
Check = Callable[[], Awaitable[object]]

RECHECK_SECONDS: Final = 3.0
REFUSED: Final = 4401  # a close code of our own


async def while_valid(check: Check, work: Coroutine[Any, Any, T]) -> T:
    """Do the work for as long as the token is valid. Raises NotAuthenticated if that ends before the work."""
    working, refused = asyncio.ensure_future(work), asyncio.ensure_future(_refusal(check))
    try:
        await asyncio.wait({working, refused}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise refused.result()
    finally:
        working.cancel()
        refused.cancel()
        await asyncio.gather(working, refused, return_exceptions=True)


async def serve_while_valid(check: Check, work: Coroutine[Any, Any, None], socket: WebSocket) -> None:
    """Do the work of an accepted socket, and close it with the reason once the token is refused."""
    try:
        await while_valid(check, work)
    except NotAuthenticated as refused:
        with suppress(RuntimeError):  # it is being closed already
            await socket.close(REFUSED, close_reason(refused.message))


async def _refusal(check: Check) -> NotAuthenticated:
    while True:
        await asyncio.sleep(RECHECK_SECONDS)
        try:
            await check()
        except NotAuthenticated as error:
            return error
        except LeasekeeperError:
            continue  # an unavailable store does not mean that the token is invalid
