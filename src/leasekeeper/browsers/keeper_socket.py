"""The worker's socket for one keeper, served by a thread of its own: JSON lines both ways, the peer's user checked.

It passes messages on without interpreting them, except `ended` and the keeper's first: a hello with its orders' secret.
"""

import hmac
import json
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

Message = dict[str, Any]

MAX_UNREAD: Final = 64 * 1024
MAX_UNSENT: Final = 256 * 1024
_CREDENTIALS: Final = struct.Struct("3i")


class Connection:
    """Listens for one keeper. The callbacks run in the connection's own thread; `wake` may be called from any thread.

    `take_messages` returns what to send, `on_message` gets each message, `on_end` is called once at the end.
    """

    def __init__(
        self,
        secret: str,
        take_messages: Callable[[], list[Message]],
        on_message: Callable[[Message], None],
        on_end: Callable[[], None],
    ) -> None:
        self._secret = secret
        self._take_messages = take_messages
        self._on_message = on_message
        self._on_end = on_end
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._peer: socket.socket | None = None
        self._authenticated = False
        self._ended = False
        self._closing = False
        self._unread = b""
        self._unsent = b""
        self._wake_write, self._wake_read = socket.socketpair()
        self._wake_write.setblocking(False)
        self._wake_read.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="leasekeeper-keeper-socket", daemon=True)

    def listen(self, name: str) -> None:
        """Bind the abstract socket name now, so that the keeper can connect at any time."""
        self._listener.bind(b"\0" + name.encode())
        self._listener.listen(4)
        self._listener.setblocking(False)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Make the thread call `take_messages`. Never blocks: one byte in the pipe is enough."""
        with suppress(OSError):
            self._wake_write.send(b".")

    def close(self) -> None:
        """Stop the thread and close the socket. Messages that wait are still sent, if the socket takes them at once."""
        self._closing = True
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self.wake()
            self._thread.join(timeout=5)
        elif not self._thread.is_alive():
            self._close_sockets()

    def _serve(self) -> None:
        try:
            while not self._ended and not self._closing:
                self._wait()
                self._step()
            self._step()
        finally:
            self._close_sockets()
            self._on_end()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        poll.register(self._listener, 0 if self._authenticated else select.POLLIN)
        if self._peer is not None:
            poll.register(self._peer, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poll.poll()

    def _step(self) -> None:
        with suppress(BlockingIOError):
            self._wake_read.recv(4096)
        if not self._authenticated:
            self._accept()
        if self._peer is not None:
            self._read()
        if self._authenticated:
            self._write()

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            peer, _ = self._listener.accept()
            if peer_user(peer) != os.geteuid():
                peer.close()
                return
            peer.setblocking(False)
            if self._peer is not None:
                self._peer.close()  # it never said hello
            self._peer, self._unread = peer, b""

    def _read(self) -> None:
        assert self._peer is not None  # noqa: S101 - the caller has checked
        try:
            chunk = self._peer.recv(MAX_UNREAD)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        if not chunk or len(self._unread) > MAX_UNREAD or not all(self._handle(line) for line in lines):
            self._drop()

    def _handle(self, line: bytes) -> bool:
        """Handle one message; False if the peer must be dropped."""
        try:
            message = json.loads(line)
        except ValueError:
            return False
        if not isinstance(message, dict):
            return False
        if not self._authenticated:
            if not hmac.compare_digest(str(message.get("hello")), self._secret):
                return False
            self._authenticated = True
        if message.get("ended"):
            self._ended = True
        with suppress(KeyError, TypeError, ValueError):  # ignore a malformed message
            self._on_message(message)
        return True

    def _write(self) -> None:
        if self._peer is None:
            return
        if len(self._unsent) < MAX_UNSENT:
            for message in self._take_messages():
                self._unsent += json.dumps(message).encode() + b"\n"
        try:
            while self._unsent:
                self._unsent = self._unsent[self._peer.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            pass  # the end of the connection shows at the next read

    def _drop(self) -> None:
        if self._authenticated:
            self._ended = True
        elif self._peer is not None:
            self._peer.close()
            self._peer = None

    def _close_sockets(self) -> None:
        for end in (self._listener, self._peer, self._wake_write, self._wake_read):
            if end is not None:
                end.close()


def peer_user(peer: socket.socket) -> int:
    """The user id of the process at the other end, as the kernel knows it."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])
