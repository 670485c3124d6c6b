"""A session whose browser runs on a worker, as the worker's server knows it: what the worker reported last, and calls
to it.

Used in place of a `SessionRun`. The worker decides: it does or refuses what is requested here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from leasekeeper.app import HumanAnswer
from leasekeeper.core.leases import Lease
from leasekeeper.core.notes import NoteAbout
from leasekeeper.driver_port import DevToolsClient
from leasekeeper.errors import LeasekeeperError
from leasekeeper.runtime.human_requests import AskEnd
from leasekeeper.runtime.person import Person
from leasekeeper.runtime.remote_client import remote_client
from leasekeeper.runtime.session_link import Link, lost_link
from leasekeeper.runtime.session_terms import SessionTerms
from leasekeeper.wire.encoding import encode_in_full
from leasekeeper.wire.shapes import decode

if TYPE_CHECKING:
    from leasekeeper.runtime.session_host import HostedSession


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteEnd:
    """How a session on a worker ended."""

    reason: str | None = None
    message: str = ""
    profile_state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNews:
    """What a worker reports about one of its sessions: the whole state, each time. `hash` is that of the session's
    token.

    `person` is who has control, `asks` what the session waits for a person to do, `passed_to` the session that got its
    browser.
    """

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
    person: Person | None = None
    asks: str | None = None
    passed_to: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON that is sent. None is left out: a server that does not know a field does not miss it."""
        found: Any = encode_in_full(self)
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAnswer:
    """The answer of a call: what came of a request for a person. `news` is about the session that has the browser.
    Without `end` it still waits.

    Never sent as news: `end` may hold a session's token.
    """

    asked: str
    news: SessionNews
    end: AskEnd | None = None


Adopt = Callable[[SessionNews], Awaitable["HostedSession"]]


class RemoteRun:
    """One session of a worker. Raises Conflict (WORKER_AWAY) while the worker is not connected.

    `adopt` makes the session that the news are about known to the server, and returns it.
    """

    def __init__(self, link: Link, news: SessionNews, adopt: Adopt) -> None:
        self._link = link
        self._news = news
        self._adopt = adopt
        self._changed = asyncio.Event()
        self._asked: set[asyncio.Task[None]] = set()

    def hear(self, news: SessionNews) -> None:
        """Take over what the worker reports now."""
        self._news = news
        self._changed.set()

    def wake(self) -> None:
        """The connection was lost: `ended` must not wait any longer."""
        self._changed.set()

    @property
    def away(self) -> bool:
        """Whether the worker is not connected any more."""
        return self._link.lost is not None

    def comes_by(self, link: Link) -> bool:
        """Whether calls to the worker go over this connection."""
        return self._link is link

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

    @property
    def person(self) -> Person | None:
        return self._news.person

    @property
    def asks(self) -> str | None:
        return self._news.asks

    @property
    def passed_to(self) -> str | None:
        return self._news.passed_to

    def client(self) -> AbstractAsyncContextManager[DevToolsClient]:
        """One DevTools client of the browser on the worker. Raises ClientRefused."""
        return remote_client(self._link, "client", self._named(viewer=False))

    def viewer(self, *, acts: bool = False) -> AbstractAsyncContextManager[DevToolsClient]:
        """A client that shows the browser to a person. Raises ClientRefused."""
        return remote_client(self._link, "client", self._named(viewer=True, acts=acts))

    async def checkpoint(self, step: str, *, flush: bool = True, url: str | None = None) -> None:
        await self._link.call("checkpoint", self._named(step=step, flush=flush, url=url))

    async def note(self, text: str, about: NoteAbout) -> None:
        await self._link.call("note", self._named(text=text, about=about.value))

    async def enter(self, name: str, *, idempotent: bool = False) -> None:
        await self._link.call("enter", self._named(section=name, idempotent=idempotent))

    async def leave(self, name: str) -> None:
        await self._link.call("leave", self._named(section=name))

    async def take(self, person: Person, owner: str) -> "HostedSession":
        """Give a person the browser. Returns their session."""
        found = await self._link.call("take", self._named(person=encode_in_full(person), owner=owner))
        return await self._adopt(decode(SessionNews, found["news"]))

    async def hand_back(self, answer: HumanAnswer) -> "HostedSession":
        """Answer the program that asked. Returns the session that goes on."""
        found = await self._link.call("hand_back", self._named(answer=encode_in_full(answer)))
        return await self._adopt(decode(SessionNews, found["news"]))

    async def ask_person(self, what: str, timeout: timedelta) -> None:
        """Ask for a person."""
        await self._link.call("ask", self._named(what=what, timeout_seconds=timeout.total_seconds()))

    async def answer(self, timeout: float) -> tuple[str, "HostedSession", AskEnd | None]:
        """Wait up to `timeout` seconds for the end of the request. Returns what was asked, the session that has the
        browser, and the end; None if it still waits."""
        found = await self._link.call("answer", self._named(wait_seconds=timeout))
        answer = decode(RemoteAnswer, found)
        return answer.asked, await self._adopt(answer.news), answer.end

    def release(
        self, reason: str | None = None, message: str = "", *, output: Mapping[str, object] | None = None
    ) -> None:
        """Ask the worker to end the session. `ended` waits for that."""
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


class RemoteAsk:
    """A worker's session asked for a person. Used in place of a `SessionAsk`; the worker keeps the request, and `ended`
    asks it."""

    def __init__(self, session: "HostedSession", run: RemoteRun) -> None:
        self.session = session
        self.what = ""
        self.end: AskEnd | None = None
        self._run = run

    async def ended(self, timeout: float) -> AskEnd | None:
        """Wait up to `timeout` seconds for the end; None if it still waits. Raises InputError if nobody was asked."""
        self.what, self.session, self.end = await self._run.answer(timeout)
        return self.end
