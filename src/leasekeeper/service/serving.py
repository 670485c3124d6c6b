"""Serves the application on a port: binds it, refuses what is not safe, runs uvicorn until asked to stop."""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from leasekeeper.browsers.keeper.client import MAX_COMMAND_BYTES
from leasekeeper.errors import InputError, Problem
from leasekeeper.local_tokens import is_loopback
from leasekeeper.runtime.session_endpoint import GONE_SECONDS, PING_SECONDS
from leasekeeper.service.connections import HttpConnection, SocketConnection

DEFAULT_PORT: Final = 7070
STOP_SECONDS: Final = 5
KEEP_ALIVE_SECONDS: Final = 75
BACKLOG: Final = 2048
MAX_HEADER_BYTES: Final = 64 * 1024
START_TIMEOUT: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to serve. `behind_tls_proxy`: a proxy in front of the server terminates TLS, so plain HTTP is safe."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tls_cert: str | None = None
    tls_key: str | None = None
    behind_tls_proxy: bool = False

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"

    def url(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{port}"


def check_address(address: Address) -> None:
    """Raise InputError if tokens would be sent unencrypted, or if one of the two TLS settings is missing."""
    problems = []
    if bool(address.tls_cert) != bool(address.tls_key):
        problems.append(Problem("tls", "a certificate and its key are given together: --tls-cert and --tls-key"))
    elif not (address.tls_cert or address.behind_tls_proxy or is_loopback(address.host)):
        problems.append(
            Problem(
                "host",
                f"{address.host} can be reached from other machines, and without TLS tokens would be readable on the "
                "way: give --tls-cert and --tls-key, or --behind-tls-proxy if a proxy in front terminates TLS, or use "
                "127.0.0.1",
            )
        )
    if problems:
        raise InputError("the server was not started", problems)


def _check_certificate(address: Address) -> None:
    """Raise InputError if the certificate and its key cannot be used together."""
    if address.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(address.tls_cert, address.tls_key)
    except (OSError, ValueError) as error:
        raise InputError(
            "the server was not started",
            [Problem("tls", f"{address.tls_cert} and {address.tls_key} are not a certificate and its key: {error}")],
        ) from None


def bind(address: Address) -> socket.socket:
    """A listening socket. Port 0 takes a free one. Raises InputError if the port is taken or the host is not ours."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given: otherwise small answers are delayed by 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        taken = error.errno == errno.EADDRINUSE
        why = "another program listens there; choose another port, or 0 for a free one" if taken else error.strerror
        raise InputError(
            "the server was not started",
            [Problem("port", f"{address.host}:{address.port} cannot be used: {why or error}")],
        ) from None
    bound.setblocking(False)
    return bound


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: the caller handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: ASGIApp, address: Address) -> AsyncIterator[str]:
    """Serve until the block ends, and give the address. Requests under way get some seconds to end."""
    check_address(address)
    _check_certificate(address)
    bound = bind(address)
    settings = uvicorn.Config(
        app,
        ssl_certfile=address.tls_cert,
        ssl_keyfile=address.tls_key,
        interface="asgi3",
        http=HttpConnection,
        ws=SocketConnection,
        lifespan="off",
        access_log=False,
        log_config=None,
        # At a lower level it would log URLs of WebSockets with their queries, which contain tokens.
        log_level="warning",
        ws_max_size=MAX_COMMAND_BYTES,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=GONE_SECONDS,
        ws_per_message_deflate=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    server = Server(settings)
    task = asyncio.ensure_future(server.serve(sockets=[bound]))
    try:
        await _started(server, task)
        yield address.url(bound.getsockname()[1])
    finally:
        server.should_exit = True
        await asyncio.wait({task})
        bound.close()


async def _started(server: Server, task: "asyncio.Future[None]") -> None:
    """Return when connections are accepted. Raises the error if the server could not start."""
    async with asyncio.timeout(START_TIMEOUT.total_seconds()):
        while not server.started:
            if task.done():
                task.result()
                raise InputError("the server was not started: the log says why")
            await asyncio.sleep(0.005)  # uvicorn has no event for this
