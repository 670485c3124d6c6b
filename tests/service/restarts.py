"""A server process that is killed and started again on its port, and a wire before it that can lose an answer."""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

SERVING = "serving "


class ServerProcess:
    """`leasekeeper server` over one store, with the admin's token of its first start."""

    def __init__(self, store: str, folder: Path, *arguments: str, **environ: str) -> None:
        self._command = [sys.executable, "-m", "leasekeeper", "--store", store, "server", *arguments]
        self._environ = {**os.environ, **environ}
        self._errors = folder / "server.log"
        self._process: subprocess.Popen[str] | None = None
        self.port = _free_port()
        self.url = ""
        self.token = ""
        self.starts = 0
        self.start_seconds = 0.0
        """How long the last start took."""

    def start(self) -> None:
        """Start it, and wait until it serves."""
        began = time.monotonic()
        with self._errors.open("ab") as errors:
            process = self._process = subprocess.Popen(
                [*self._command, "--port", str(self.port)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environ,
            )
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("lk_"):
                self.token = line.strip()
            if line.startswith(SERVING):
                self.url = line.split()[1].rstrip(";")
                self.starts += 1
                self.start_seconds = time.monotonic() - began
                return
        raise AssertionError(self._errors.read_text())

    def send(self, number: signal.Signals) -> None:
        """Stop it where it is, or let it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it: by SIGKILL it can do nothing more."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill(signal.SIGTERM)


_RESERVED: list[IO[str]] = []


def _free_port() -> int:
    """A port that is free and stays so while its server is down: outside of the range that connections of this machine
    get theirs from, and locked against other test processes."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in range(low - 1, 1024, -7):
        lock = (Path(tempfile.gettempdir()) / f"leasekeeper-test-port-{port}").open("w")
        with socket.socket() as trial, suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            trial.bind(("127.0.0.1", port))
            _RESERVED.append(lock)
            return port
        lock.close()
    raise AssertionError("no port is free")


class LossyWire:
    """Carries bytes to a port. An answer that is to be lost is read to its end, and never arrives."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.lose: Callable[[], None] | None = None
        """What to do instead of passing on the next answer."""
        self.lost = 0
        self.moves = 0
        """How often the server has moved: connections from before carry no answer any more, and stay open."""
        self.carrying: set[Any] = set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.carrying.add(asyncio.current_task())
        with suppress(OSError, asyncio.CancelledError):
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            calling = asyncio.ensure_future(_copy(reader, back))
            try:
                await self._answer(there, writer)
            finally:
                calling.cancel()
                back.close()
                await asyncio.wait({calling})
        writer.close()

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        moves = self.moves
        while chunk := await there.read(65536):
            if moves < self.moves:
                await asyncio.Event().wait()
            if self.lose is not None:
                act, self.lose = self.lose, None
                self.lost += 1
                await asyncio.to_thread(act)
                return
            writer.write(chunk)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()


@asynccontextmanager
async def lossy(port: int) -> AsyncIterator[tuple[LossyWire, str]]:
    """A wire to this port, and its address."""
    wire = LossyWire(port)
    server = await asyncio.start_server(wire.carry, "127.0.0.1", 0)
    async with server:
        yield wire, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in wire.carrying:
            task.cancel()
        await asyncio.gather(*wire.carrying)
