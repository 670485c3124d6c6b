"""Peers that stop reading, on real sockets: they are cut off, and count until they are."""

import asyncio
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import pytest
from starlette.types import Receive, Scope, Send

from leasekeeper.core.events import Event, EventType
from leasekeeper.service import connections
from leasekeeper.service.connections import _StallDetector
from leasekeeper.service.event_feed import FeedItem
from leasekeeper.service.serving import Address, serving
from tests.conformance.world import START
from tests.runtime.stage import until
from tests.serving import Served

PATIENCE_MS = 60_000
UPGRADE = (
    *("Connection: Upgrade", "Upgrade: websocket"),
    *("Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="),
)
# Together more than the buffers of both ends take.
EVENTS, EVENT_BYTES = 200, 100_000


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.2)


@contextmanager
def unread(url: str, *headers: str) -> Iterator[socket.socket]:
    """A connection whose answer has begun."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as peer:
        lines = [f"GET {address.path or '/'} HTTP/1.1", "Host: localhost", *headers, "", ""]
        peer.sendall("\r\n".join(lines).encode())
        assert peer.recv(12).split()[1] in (b"101", b"200")
        yield peer


def cut_off(peer: socket.socket) -> bool:
    """Wait until the server resets the connection. What it sent stays unread."""
    waiting = select.poll()
    waiting.register(peer, 0)
    return bool(waiting.poll(PATIENCE_MS))


async def publish(served: Served) -> None:
    """Many large events, as if they were read from the log."""
    for number in range(EVENTS):
        event = Event(at=START, type=EventType.MANUAL_USE_DETECTED, data={"x": "y" * EVENT_BYTES})
        served.service.signals._feed._publish(FeedItem(event, number + 1))


async def nobody_listens(served: Served) -> bool:
    return not served.service.signals._feed._open


def test_a_reader_of_events_that_stalls_is_cut_off(served: Served) -> None:
    with unread(f"{served.url}/v1/events/stream", f"Authorization: Bearer {served.token}") as peer:
        served.run(publish(served))
        assert cut_off(peer)
    served.run(until(partial(nobody_listens, served)))


async def answer_at_length(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that sends 20 MB at once."""
    await receive()
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": bytes(EVENTS * EVENT_BYTES)})
        await send({"type": "websocket.close"})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(EVENTS * EVENT_BYTES)})


async def test_downloads_and_sockets_that_nobody_reads_are_cut_off() -> None:
    def both(url: str) -> list[bool]:
        with unread(url) as download, unread(url, *UPGRADE) as stream:
            return [cut_off(download), cut_off(stream)]

    async with serving(answer_at_length, Address(port=0)) as url:
        assert await asyncio.to_thread(both, url) == [True, True]


class Kept(_StallDetector):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)


async def test_a_peer_that_reads_slowly_is_not_cut_off() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, kept = await loop.create_connection(Kept, sock=ours)
    transport.write(bytes(EVENTS * EVENT_BYTES))
    before = transport.get_write_buffer_size()
    assert before > 0
    while transport.get_write_buffer_size() == before:
        await loop.sock_recv(theirs, EVENT_BYTES)
    kept._check(before)
    assert not transport.is_closing()
    kept._check(transport.get_write_buffer_size())
    assert transport.is_closing()
    theirs.close()
