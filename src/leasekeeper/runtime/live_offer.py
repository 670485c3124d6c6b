"""Offers a worker's browsers of jobs to its server: people view, take, hand back and release them there.

The `LiveRun` does everything as if the person were at this machine. Every change is sent at once; after a reconnect
everything is sent again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from leasekeeper.app import HumanAnswer
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.driver_port import ClientRefused
from leasekeeper.errors import Conflict, InputError
from leasekeeper.runtime.live_runs import LiveRun, live_runs, watching
from leasekeeper.runtime.person import Person
from leasekeeper.runtime.remote_live import LiveNews
from leasekeeper.runtime.session_link import IncomingCall, Link, relay
from leasekeeper.wire.encoding import encode_in_full
from leasekeeper.wire.shapes import decode

CALLS: Final = ("live_view", "live_take", "live_hand_back", "live_release")
_ENDED: Final = "the run has ended, and its browser with it"


def news_of(live: LiveRun) -> LiveNews:
    """Everything that the server has to know about a browser."""
    return LiveNews(
        key=live.key,
        leases=tuple(lease.lease_id for lease in live.leases),
        person=live.person,
        wants=live.wants,
        may_hand_back=live.may_hand_back,
        over=live.over,
    )


class LiveOffer:
    """Reports the browsers of this process to its server, and performs the server's calls on them."""

    def __init__(self) -> None:
        self._notify: Callable[[Mapping[str, Any]], None] | None = None
        self._sent: dict[str, LiveNews] = {}
        self._under_way: set[asyncio.Future[Any]] = set()

    @asynccontextmanager
    async def offered(self, link: Link) -> AsyncIterator[None]:
        """While this connection lasts, report every browser, and then every change."""
        self._notify, self._sent = link.notify, {}
        with watching(self._changed):
            for live in live_runs():
                self._changed(live)
            try:
                yield
            finally:
                self._notify = None

    def _changed(self, live: LiveRun) -> None:
        news = news_of(live)
        if self._notify is None or self._sent.get(news.key) == news:
            return
        self._sent[news.key] = news
        if news.over:
            del self._sent[news.key]
        self._notify(news.as_json())

    async def perform(self, call: IncomingCall) -> object:
        """Perform a call of the server. Raises Conflict if the run has ended, InputError for an unknown call."""
        live = _find(str(call.arguments.get("key")))
        match call.name:
            case "live_view":
                await _show(call, live)
            case "live_take":
                await self._finish(live.take(decode(Person, call.arguments["person"])))
            case "live_hand_back":
                await self._finish(live.hand_back(decode(HumanAnswer, call.arguments["answer"])))
            case "live_release":
                return encode_in_full(await self._finish(live.release(str(call.arguments["message"]))))
            case _:
                raise InputError(f"this worker does not know {call.name}")
        return None

    async def _finish(self, work: Any) -> Any:
        """Run `work` to its end, also if the connection is lost meanwhile."""
        doing = asyncio.ensure_future(work)
        self._under_way.add(doing)
        doing.add_done_callback(self._done)
        return await asyncio.shield(doing)

    def _done(self, doing: "asyncio.Future[Any]") -> None:
        self._under_way.discard(doing)
        if not doing.cancelled():
            doing.exception()  # asyncio logs an error that nobody reads, and the caller may be gone


def _find(key: str) -> LiveRun:
    found = next((live for live in live_runs() if live.key == key), None)
    if found is None:
        raise Conflict(_ENDED, cause=ConflictReason.LEASE_NOT_HELD, run_id=key)
    return found


async def _show(call: IncomingCall, live: LiveRun) -> None:
    try:
        async with live.viewer() as client:
            await relay(call, client, lambda: _ENDED if live.over else "the browser's keeper ended the connection")
    except ClientRefused as refused:
        raise Conflict(str(refused), cause=ConflictReason.CLIENT_REFUSED) from None
