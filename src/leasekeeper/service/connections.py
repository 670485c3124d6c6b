"""The server's connections: uvicorn's, but a peer that does not read is disconnected.

Otherwise a send to such a peer, and closing its connection, would wait for room in the buffer for ever. A peer that
reads some of the buffer within `STALLED_SECONDS` is only slow.
"""

import asyncio
import logging
import socket
import struct
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_LOG = logging.getLogger(__name__)

STALLED_SECONDS: Final = 60.0
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class _StallDetector(asyncio.Protocol):
    """A full buffer has to shrink within `STALLED_SECONDS`."""

    transport: asyncio.Transport
    _full: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        self._unwatch()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._full = asyncio.get_running_loop().call_later(STALLED_SECONDS, self._check, left)

    def _unwatch(self) -> None:
        if self._full is not None:
            self._full.cancel()
            self._full = None

    def _check(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._watch()
            return
        _LOG.info(
            "cut off %s: it has read nothing for %g s", self.transport.get_extra_info("peername"), STALLED_SECONDS
        )
        # Reset, not closed: otherwise the kernel keeps the unread data for minutes.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()


class HttpConnection(_StallDetector, HttpToolsProtocol):
    """HTTP. What becomes a WebSocket goes on as a `SocketConnection`."""


class SocketConnection(_StallDetector, WebSocketsSansIOProtocol):
    """A WebSocket."""
