"""The browsers that a worker has open for jobs, offered to its server: shown, taken, handed back and released there.

Everything is done by the `LiveRun` as if the person was at this machine. Whatever changes is said at once; a server
that was away is told everything again.
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
    """Everything that the server has to know of a browser."""
    return LiveNews(
        key=live.key,
        leases=tuple(lease.lease_id for lease in live.leases),
        person=live.person,
        wants=live.wants,
        may_hand_back=live.may_hand_back,
        over=live.over,
    )


class LiveOffer:
    """What one process says of its browsers to its server, and does for it."""

    def __init__(self) -> None:
        self._notify: Callable[[Mapping[str, Any]], None] | None = None
        self._said: dict[str, LiveNews] = {}
        self._under_way: set[asyncio.Future[Any]] = set()

    @asynccontextmanager
    async def offered(self, link: Link) -> AsyncIterator[None]:
        """Say what there is, and whatever changes, while this connection lasts."""
        self._notify, self._said = link.notify, {}
        with watching(self._changed):
            for live in live_runs():
                self._changed(live)
            try:
                yield
            finally:
                self._notify = None

    def _changed(self, live: LiveRun) -> None:
        news = news_of(live)
        if self._notify is None or self._said.get(news.key) == news:
            return
        self._said[news.key] = news
        if news.over:
            del self._said[news.key]
        self._notify(news.as_json())

    async def perform(self, call: IncomingCall) -> object:
        """What the server asks."""
        live = _open(str(call.arguments.get("key")))
        match call.name:
            case "live_view":
                await _show(call, live)
            case "live_take":
                await self._whole(live.take(decode(Person, call.arguments["person"])))
            case "live_hand_back":
                await self._whole(live.hand_back(decode(HumanAnswer, call.arguments["answer"])))
            case "live_release":
                return encode_in_full(await self._whole(live.release(str(call.arguments["message"]))))
            case _:
                raise InputError(f"this worker does not know {call.name}")
        return None

    async def _whole(self, work: Any) -> Any:
        """Do it to its end, also if the connection is lost meanwhile."""
        doing = asyncio.ensure_future(work)
        self._under_way.add(doing)
        doing.add_done_callback(self._done)
        return await asyncio.shield(doing)

    def _done(self, doing: "asyncio.Future[Any]") -> None:
        self._under_way.discard(doing)
        if not doing.cancelled():
            doing.exception()  # whoever asked may have left


def _open(key: str) -> LiveRun:
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
