"""A wire that breaks: a small relay between clients, by TCP, and a server's socket, in a thread of its own.

`cut` ends every connection at once. `swallow` lets requests through and keeps the answers, then cuts: the server has
done the work, and nobody knows. `drop` keeps the requests, then cuts: nothing was done, and nobody knows that either.
"""

import random
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

CHUNK = 65_536
KEEP_SECONDS = 0.15


class Wire:
    """Who connects to `port` is led to the socket at `address`: a unix socket's path, or a host and a port."""

    def __init__(self, address: str | tuple[str, int], seed: int) -> None:
        self._address = address
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.2)
        self.port = int(self._listener.getsockname()[1])
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._keeps_answers = threading.Event()
        self._keeps_requests = threading.Event()
        self.cuts = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self.cut()
        for thread in list(self._threads):
            thread.join()
        self._listener.close()

    def url(self, database: str) -> str:
        """Of a PostgreSQL behind the wire."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def cut(self) -> None:
        """End every connection, in the middle of whatever it carries."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self.cuts += len(pairs)

    def swallow(self) -> None:
        """For a moment nothing comes back from the server; then every connection ends."""
        self._keep(self._keeps_answers)

    def drop(self) -> None:
        """For a moment nothing reaches the server; then every connection ends."""
        self._keep(self._keeps_requests)

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Inside the block nothing passes in either direction; at its end every connection is cut."""
        self._keeps_requests.set()
        self._keeps_answers.set()
        try:
            yield
        finally:
            self.cut()
            self._keeps_requests.clear()
            self._keeps_answers.clear()

    def _keep(self, what: threading.Event) -> None:
        what.set()
        time.sleep(self._random.uniform(0.01, KEEP_SECONDS))  # waits: one direction of the wire is dead
        self.cut()
        what.clear()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            server = socket.socket(socket.AF_UNIX if isinstance(self._address, str) else socket.AF_INET)
            try:
                server.connect(self._address)
            except OSError:
                client.close()
                server.close()
                continue
            thread = threading.Thread(target=self._relay, args=(client, server), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        pair = (client, server)
        with self._lock:
            self._pairs.add(pair)
        try:
            with client, server, selectors.DefaultSelector() as ready, suppress(OSError):
                ready.register(client, selectors.EVENT_READ, server)
                ready.register(server, selectors.EVENT_READ, client)
                while not self._closing.is_set():
                    for key, _ in ready.select(timeout=0.2):
                        source, target = key.fileobj, key.data
                        assert isinstance(source, socket.socket)
                        data = source.recv(CHUNK)
                        if not data:
                            return
                        kept = self._keeps_answers if source is server else self._keeps_requests
                        if not kept.is_set():
                            target.sendall(data)
        finally:
            with self._lock:
                self._pairs.discard(pair)
