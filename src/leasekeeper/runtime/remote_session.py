"""A session whose browser runs on a worker, as its server knows it: what the worker said last, and calls to it.

Used in the place of a `SessionRun`. The worker decides; whatever is asked here is done there, or refused there.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from leasekeeper.core.leases import Lease
from leasekeeper.core.notes import NoteAbout
from leasekeeper.driver_port import ClientRefused, DevToolsClient
from leasekeeper.errors import Conflict, ConflictReason, LeasekeeperError
from leasekeeper.runtime.session_link import Link, lost_link
from leasekeeper.runtime.session_run import SessionTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEnd:
    """How it ended."""

    reason: str | None = None
    message: str = ""
    profile_state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNews:
    """What a worker says of one of its sessions: everything, each time. `hash` is that of the session's token."""

    owner: str
    hash: str
    lease: Lease
    terms: SessionTerms
    clients: int = 0
    closing: bool = False
    over: bool = False
    lost: str | None = None
    why_over: str = ""
    end: RemoteEnd | None = None


class RemoteRun:
    """One session of a worker. Raises Conflict (WORKER_AWAY) while the worker is not connected."""

    def __init__(self, link: Link, news: SessionNews) -> None:
        self._link = link
        self._news = news
        self._changed = asyncio.Event()
        self._asked: set[asyncio.Task[None]] = set()

    def hear(self, news: SessionNews) -> None:
        """What the worker says now."""
        self._news = news
        self._changed.set()

    def wake(self) -> None:
        """The connection was lost: whoever waits for the end waits for nothing."""
        self._changed.set()

    @property
    def away(self) -> bool:
        """Whether the worker is not connected any more."""
        return self._link.lost is not None

    @property
    def lease(self) -> Lease:
        return self._news.lease

    @property
    def terms(self) -> SessionTerms:
        return self._news.terms

    @property
    def clients(self) -> int:
        return self._news.clients

    @property
    def closing(self) -> bool:
        return self._news.closing

    @property
    def over(self) -> bool:
        return self._news.over

    @property
    def lost(self) -> str | None:
        return self._news.lost

    @property
    def why_over(self) -> str:
        return self._news.why_over

    @property
    def end(self) -> RemoteEnd | None:
        return self._news.end

    @property
    def profile_state(self) -> str | None:
        return self._news.end.profile_state if self._news.end else None

    @asynccontextmanager
    async def client(self) -> AsyncIterator[DevToolsClient]:
        """One DevTools client of the browser on the worker. Raises ClientRefused."""
        async with self._stream(viewer=False) as stream:
            yield stream

    @asynccontextmanager
    async def viewer(self) -> AsyncIterator[DevToolsClient]:
        """A client that shows the browser to a person."""
        async with self._stream(viewer=True) as stream:
            yield stream

    @asynccontextmanager
    async def _stream(self, *, viewer: bool) -> AsyncIterator[DevToolsClient]:
        try:
            stream = await self._link.open("client", self._named(viewer=viewer))
        except Conflict as refused:
            if refused.cause == ConflictReason.CLIENT_REFUSED:
                raise ClientRefused(refused.message) from None
            raise
        try:
            yield stream
        finally:
            await stream.close()

    async def checkpoint(self, step: str, *, flush: bool = True, url: str | None = None) -> None:
        await self._link.call("checkpoint", self._named(step=step, flush=flush, url=url))

    async def note(self, text: str, about: NoteAbout) -> None:
        await self._link.call("note", self._named(text=text, about=about.value))

    async def enter(self, name: str, *, idempotent: bool = False) -> None:
        await self._link.call("enter", self._named(section=name, idempotent=idempotent))

    async def leave(self, name: str) -> None:
        await self._link.call("leave", self._named(section=name))

    def release(
        self, reason: str | None = None, message: str = "", *, output: Mapping[str, object] | None = None
    ) -> None:
        """Ask for the end. `ended` waits for it."""
        asked = asyncio.ensure_future(self._release(self._named(reason=reason, message=message, output=output)))
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)

    async def _release(self, arguments: Mapping[str, Any]) -> None:
        with suppress(LeasekeeperError):  # `ended` says that the worker is away, or how it ended
            await self._link.call("release", arguments)

    async def ended(self) -> RemoteEnd | None:
        """Wait until the worker says that everything is closed and settled."""
        while not self._news.over:
            if self._link.lost is not None:
                raise lost_link(self._link.lost)
            self._changed.clear()
            await self._changed.wait()
        return self._news.end

    def _named(self, **arguments: Any) -> dict[str, Any]:
        return {"session_id": self._news.lease.run_id, **arguments}
