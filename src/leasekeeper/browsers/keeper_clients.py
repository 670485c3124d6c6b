"""The worker's connection to a keeper for one further DevTools client: whole messages both ways.

The worker opens a socket for the client and sends its name to the keeper, which connects to it. So the keeper listens
nowhere, and only the worker can connect clients to the browser.
"""

import asyncio
import os
import secrets
import socket
import struct
from contextlib import suppress
from typing import Final

from leasekeeper.browsers.keeper.client import MAX_COMMAND_BYTES

_CREDENTIALS: Final = struct.Struct("3i")
_PIECE: Final = 256 * 1024


class ClientSocket:
    """The socket that the keeper connects to. `name` is its abstract name."""

    def __init__(self) -> None:
        self.name = f"leasekeeper-cdp-{os.getpid()}-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(b"\0" + self.name.encode())
        self._listener.listen(1)
        self._listener.setblocking(False)

    async def accept(self, keeper_pid: int) -> "KeeperClient":
        """Wait until the keeper connects. Any other process is disconnected."""
        loop = asyncio.get_running_loop()
        while True:
            peer, _ = await loop.sock_accept(self._listener)
            raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, user, _ = _CREDENTIALS.unpack(raw)
            if (pid, user) == (keeper_pid, os.geteuid()):
                peer.setblocking(False)
                return KeeperClient(self.name, peer)
            peer.close()

    def close(self) -> None:
        self._listener.close()


class KeeperClient:
    """One client. `why` says why the keeper disconnected it; empty if the client closed the connection itself.

    Nothing is read ahead: if the client does not read, the socket fills up and the keeper notices.
    """

    def __init__(self, name: str, connection: socket.socket) -> None:
        self.name = name
        self.why = ""
        self._socket = connection
        self._unread = bytearray()
        self._searched = 0
        self._not_reading = asyncio.Event()
        self._not_reading.set()

    async def send(self, message: bytes) -> None:
        """Send one command. Waits while the keeper does not read. Does nothing once the client is disconnected."""
        if b"\0" in message or len(message) > MAX_COMMAND_BYTES:
            message = b"-"  # not a command, so the keeper disconnects the client
        with suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self._socket, message + b"\0")

    async def receive(self) -> bytes | None:
        """The next message of the browser; None once the keeper has disconnected the client."""
        self._not_reading.clear()
        try:
            return await self._receive()
        finally:
            self._not_reading.set()

    async def _receive(self) -> bytes | None:
        loop = asyncio.get_running_loop()
        while (end := self._unread.find(b"\0", self._searched)) < 0:
            self._searched = len(self._unread)
            try:
                piece = await loop.sock_recv(self._socket, _PIECE)
            except OSError:
                return None
            if not piece:
                return None
            self._unread += piece
        message = bytes(self._unread[:end])
        del self._unread[: end + 1]
        self._searched = 0
        return message

    async def close(self) -> None:
        """Disconnect: the keeper ends the client's sessions in the browser. A pending `receive` returns None."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        await self._not_reading.wait()  # the loop never reports a descriptor that was closed while it was waited for
        self._socket.close()
