"""A door in front of a PostgreSQL server that cuts the connection at a COMMIT, before it or after it.

Speaks just enough of the protocol to know where messages begin and which of them is a COMMIT.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum

from tests.servers import PostgresServer


class Cut(Enum):
    BEFORE = "the COMMIT never arrives"
    AFTER = "the COMMIT is done, its answer is lost"


class Frozen(Enum):
    """The same, but the client hears nothing of it: its connection stays open, and silent."""

    BEFORE = Cut.BEFORE.value
    AFTER = Cut.AFTER.value


class Cutter:
    """`url(database)` leads through the door. `cut` tells it what to do with the next COMMITs;
    `freeze` makes every connection silent.

    Of a cut the client hears only when the server is done with it: what it holds is free then, also for those who would
    not wait for it.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._address = server.address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._cuts: list[Cut | Frozen | None] = []
        self._wires: set[_Wire] = set()
        self._shut = self._shut_at_cut = False
        self._threads = [threading.Thread(target=self._accept)]
        self.cut_off = threading.Event()
        self._threads[0].start()

    def url(self, database: str) -> str:
        port = self._listener.getsockname()[1]
        return f"postgresql://postgres@127.0.0.1:{port}/{database}?sslmode=disable&gssencmode=disable"

    def cut(self, *cuts: Cut | Frozen | None, then_shut: bool = False) -> None:
        """What becomes of the COMMITs to come, in order; None lets one pass. `then_shut`: a cut closes the door too."""
        with self._lock:
            self._cuts, self._shut_at_cut = list(cuts), then_shut
            self.cut_off.clear()

    def freeze(self) -> None:
        """Every connection there is stays open and carries nothing more, either way. New ones are not concerned."""
        with self._lock:
            for wire in self._wires:
                wire.frozen.set()

    def shut(self) -> None:
        """Close the door: every connection breaks, and no new one is made."""
        with self._lock:
            self._shut = True
            self._close_all()

    def open(self) -> None:
        with self._lock:
            self._shut = False

    def close(self) -> None:
        self.shut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def was_cut(self) -> None:
        """A wire was cut, and its client does not know it yet."""
        with self._lock:
            self._shut = self._shut or self._shut_at_cut
        self.cut_off.set()

    def next_cut(self) -> Cut | Frozen | None:
        with self._lock:
            return self._cuts.pop(0) if self._cuts else None

    def _close_all(self) -> None:
        for each in self._sockets:
            break_off(each)
        self._sockets.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._shut:
                    client.close()
                    continue
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._address)
                self._sockets |= {client, server}
                wire = _Wire(self, client, server)
                self._wires.add(wire)
                self._threads.append(threading.Thread(target=wire.carry))
                self._threads[-1].start()


class _Wire:
    """One connection through the door: two threads that carry messages."""

    def __init__(self, cutter: Cutter, client: socket.socket, server: socket.socket) -> None:
        self._cutter, self._client, self._server = cutter, client, server
        self._statements: dict[bytes, bytes] = {}
        self._losing_answers = threading.Event()
        self.frozen = threading.Event()
        self._back = threading.Thread(target=self._until_broken, args=(self._carry_answers,))

    def carry(self) -> None:
        """Until one side is done; then neither hears of the other any more."""
        self._back.start()
        self._until_broken(self._carry_requests)
        self._back.join()
        self._client.close()
        self._server.close()

    def _until_broken(self, carry: Callable[[], None]) -> None:
        with suppress(OSError, EOFError):
            carry()
        break_off(self._client)
        break_off(self._server)

    def _carry_requests(self) -> None:
        self._server.sendall(read_startup(self._client))
        while True:
            kind, body = read_message(self._client)
            if self._is_commit(kind, body):
                match self._cutter.next_cut():
                    case Cut.BEFORE:
                        self._losing_answers.set()
                        self._server.shutdown(socket.SHUT_WR)
                        self._back.join()
                        return
                    case Cut.AFTER:
                        self._losing_answers.set()
                    case Frozen.BEFORE:
                        self._freeze()
                    case Frozen.AFTER:
                        self._server.sendall(message(kind, body))
                        self._freeze()
                    case None:
                        pass
            if not self.frozen.is_set():
                self._server.sendall(message(kind, body))

    def _freeze(self) -> None:
        self.frozen.set()
        self._cutter.was_cut()

    def _carry_answers(self) -> None:
        with suppress(OSError, EOFError):  # a server that is gone has let go of whatever it held
            while True:
                kind, body = read_message(self._server)
                if self.frozen.is_set():
                    continue
                if not self._losing_answers.is_set():
                    self._client.sendall(message(kind, body))
                elif (kind, body) == (b"C", b"COMMIT\0"):
                    break
        if self._losing_answers.is_set():
            self._cutter.was_cut()

    def _is_commit(self, kind: bytes, body: bytes) -> bool:
        """A Bind of a statement that was prepared as COMMIT, or the plain query."""
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._statements[name] = text.strip().upper()
        if kind == b"B":
            return self._statements.get(body.split(b"\0", 2)[1]) == b"COMMIT"
        return kind == b"Q" and body.strip(b"\0; ").upper() == b"COMMIT"


def break_off(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


def read_exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = source.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def read_startup(client: socket.socket) -> bytes:
    length = read_exactly(client, 4)
    return length + read_exactly(client, int.from_bytes(length, "big") - 4)


def read_message(source: socket.socket) -> tuple[bytes, bytes]:
    kind = read_exactly(source, 1)
    length = int.from_bytes(read_exactly(source, 4), "big")
    return kind, read_exactly(source, length - 4)


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


@contextmanager
def cutter(server: PostgresServer) -> Iterator[Cutter]:
    door = Cutter(server)
    try:
        yield door
    finally:
        door.close()
