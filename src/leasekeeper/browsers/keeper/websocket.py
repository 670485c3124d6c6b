"""A DevTools WebSocket as two `Channel`s: the rest of the keeper sees the same byte streams as from a pipe.

The library `websockets` does the protocol, without I/O of its own. The keeper runs without site-packages, so its orders
say where the library is. Never blocks once connected.
"""

import base64
import os
import socket
import ssl
import sys
import time

from leasekeeper.browsers.keeper.reached import PIECE, Channel

CONNECT_SECONDS = 5.0
AGAIN_SECONDS = 0.1


class NotReached(Exception):
    """No DevTools connection to this address was possible; the text says why."""


class WebSocket:
    """One open connection. `to` is the channel to the browser, `out` from it; in both, messages end with a NUL."""

    def __init__(self, url: str, packages: str, max_message_bytes: int, until: float, *, again: bool = False) -> None:
        """Connect; retry until `until` (monotonic), as a launcher may answer before its browser listens.

        `again`: this replaces a connection that was closed; a message that was partly received there ends here. Raises
        NotReached.
        """
        if packages and packages not in sys.path:
            sys.path.append(packages)
        self._max_bytes = max_message_bytes
        self._early = b""
        while True:
            try:
                self._connect(url, until)
                break
            except (OSError, NotReached) as error:
                if time.monotonic() + AGAIN_SECONDS >= until:
                    raise NotReached(f"no DevTools connection to {without_query(url)}: {error}") from None
                time.sleep(AGAIN_SECONDS)
        if again:
            self._early = b"\0" + self._early
        self.closed = False
        self.to, self.out = _To(self), _Out(self)

    def _connect(self, url: str, until: float) -> None:
        from websockets.client import ClientProtocol
        from websockets.exceptions import InvalidHandshake, InvalidURI
        from websockets.uri import parse_uri

        try:
            uri = parse_uri(url)
        except InvalidURI as error:
            raise NotReached(str(error)) from None
        patience = max(0.2, min(CONNECT_SECONDS, until - time.monotonic()))
        self._socket = socket.create_connection((uri.host, uri.port), patience)
        try:
            if uri.secure:
                self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=uri.host)
            # The relay enforces the limit: it must get enough of a larger message to see that it is too large.
            self._protocol = ClientProtocol(uri, max_size=2 * self._max_bytes)
            request = self._protocol.connect()
            if uri.user_info is not None:
                login = base64.b64encode(":".join(uri.user_info).encode()).decode()
                request.headers["Authorization"] = f"Basic {login}"
            self._protocol.send_request(request)
            self._socket.sendall(b"".join(self._protocol.data_to_send()))
            while self._protocol.state.name == "CONNECTING":
                data = self._socket.recv(PIECE)
                if data:
                    self._protocol.receive_data(data)
                else:
                    self._protocol.receive_eof()
                if self._protocol.handshake_exc is not None:
                    raise self._protocol.handshake_exc
        except (InvalidHandshake, EOFError) as error:
            self._socket.close()
            raise NotReached(str(error) or type(error).__name__) from None
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self.descriptor = self._socket.fileno()
        self._pending = bytearray()
        # Frames may have arrived together with the handshake's answer.
        self._early = self._payloads()

    def receive(self, limit: int) -> bytes | None:
        """The bytes that have arrived, as a stream; None if there are none yet; empty at the end of the connection."""
        if self._early:
            early, self._early = self._early, b""
            return early
        if self.closed:
            return b""
        try:
            data: bytes = self._socket.recv(limit)
            while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
                data += self._socket.recv(self._socket.pending())
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return b""
        self._protocol.receive_data(data)
        stream = self._payloads()
        self._collect()
        self.flush()
        if self._protocol.state.name in ("CLOSING", "CLOSED"):
            self.closed = True
        return stream or (b"" if self.closed else None)

    def _payloads(self) -> bytes:
        from websockets.frames import Frame, Opcode

        stream = bytearray()
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                stream += event.data
                if event.fin:
                    stream += b"\0"
        return bytes(stream)

    def send(self, message: bytes) -> None:
        """Queue one message; `flush` writes it."""
        self._protocol.send_text(message)
        self._collect()

    def _collect(self) -> None:
        for data in self._protocol.data_to_send():
            self._pending += data

    def flush(self) -> bool:
        """Write what is queued, without waiting. Returns whether all of it was written."""
        while self._pending:
            try:
                written = self._socket.send(self._pending)
            except (BlockingIOError, ssl.SSLWantWriteError):
                return False
            except OSError:
                self.closed = True
                self._pending.clear()
                return True
            del self._pending[:written]
        return True

    def close(self) -> None:
        """Close the connection: nothing more goes through it. Its descriptor stays open."""
        self.closed = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # closed already. The descriptor stays open, so that its number is not reused while it is polled


class _Out(Channel):
    def __init__(self, connection: WebSocket) -> None:
        super().__init__(connection.descriptor)
        self._connection = connection

    def read(self, limit: int = PIECE) -> bytes | None:
        return self._connection.receive(limit)


class _To(Channel):
    """Accepts a stream and sends whole messages. A message's NUL is accepted only once the message is fully written."""

    def __init__(self, connection: WebSocket) -> None:
        super().__init__(connection.descriptor)
        self._connection = connection
        self._partial = bytearray()
        self._unwritten = False

    def write(self, data: "memoryview | bytes") -> int:
        connection = self._connection
        if connection.closed:
            return -1
        if not connection.flush():
            return 0
        if connection.closed:
            return -1
        piece = bytes(data)
        taken = 1 if self._unwritten and piece[:1] == b"\0" else 0
        self._unwritten = False
        while taken < len(piece):
            end = piece.find(b"\0", taken)
            if end < 0:
                self._partial += piece[taken:]
                return len(piece)
            self._partial += piece[taken:end]
            message, self._partial = bytes(self._partial), bytearray()
            connection.send(message)
            if not connection.flush():
                self._unwritten = True
                return end
            taken = end + 1
        return taken


def without_query(url: str) -> str:
    """The address without user, password and query, which may be secrets."""
    head, _, rest = url.partition("://")
    place = rest.partition("?")[0]
    return f"{head}://{place.rpartition('@')[2]}"


def never_readable() -> int:
    """A descriptor on which nothing ever happens."""
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_inheritable(write, False)  # kept open, so that `read` has no end
    return read
