"""`GET /v1/events/stream`: new events of the log as server-sent events.

The `id` of a message is a position, not the number of its event: a browser sends it back as `Last-Event-ID`, and goes
on from there without a gap. Some events may then come twice: compare `seq` in the data.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

from starlette.responses import Response

from leasekeeper.core.events import EventType
from leasekeeper.core.ids import is_number
from leasekeeper.core.tokens import Needs, Scope
from leasekeeper.errors import EventsGone
from leasekeeper.service.auth import bearer
from leasekeeper.service.event_feed import EventFeed, FeedItem, Listener
from leasekeeper.service.event_stream import MEDIA, EventStream
from leasekeeper.service.routing import Call, Parameter, Route, Subject
from leasekeeper.wire import encode
from leasekeeper.wire.kinds import Scalar, Wrong

# Proxies cut connections that are silent for a minute.
PING_SECONDS: Final = 20.0
RETRY_MS: Final = 2_000
MAX_TOGETHER: Final = 100
_IDS: Final = ("account_id", "profile_id", "job_id", "run_id", "worker_id")


class _Words(Scalar):
    """Text of one or several values, separated by commas."""

    def __init__(self, rule: str, choices: frozenset[str] = frozenset()) -> None:
        self.rule = rule
        self._choices = choices

    def parse(self, value: object) -> frozenset[str]:
        words = frozenset(str(value).split(","))
        if "" in words or (self._choices and not words <= self._choices):
            raise Wrong(f"must be {self.rule}")
        return words

    def schema(self) -> dict[str, object]:
        return {"type": "string"}


class _Position(Scalar):
    rule = "the id of a message of this stream"

    def parse(self, value: object) -> int:
        if not is_number(str(value)):
            raise Wrong(f"must be {self.rule}")
        return int(str(value))

    def schema(self) -> dict[str, object]:
        return {"type": "string", "pattern": "^[0-9]{1,18}$"}


async def _about(call: Call) -> Subject:
    """A restricted token has to name its account."""
    accounts = call.query.get("account_id", frozenset())
    return Subject(account=next(iter(accounts)) if len(accounts) == 1 else None)


async def stream(call: Call) -> Response:
    """Answer with a stream that ends when the reader is gone, too slow, or its token refused, or the server stops."""
    feed = await call.service.signals.feed()
    wanted = {name: call.query[name] for name in ("type", *_IDS) if name in call.query}
    after = call.query.get("Last-Event-ID", call.query.get("after"))
    listener = feed.listen(wanted, after)
    if listener is None:
        raise EventsGone(
            "the stream cannot begin there: that position is no longer in memory, or too many read already; "
            "list the events since then, and stream without a position",
            position=str(feed.position),
        )
    return EventStream(
        _messages(feed, listener),
        auth=call.service.auth,
        token=bearer(call.request.headers.get("authorization")),
        leave=partial(feed.leave, listener),
    )


async def _messages(feed: EventFeed, listener: Listener) -> AsyncGenerator[str, None]:
    yield f"retry: {RETRY_MS}\nid: {feed.position}\n\n"
    while True:
        try:
            item = await asyncio.wait_for(listener.waiting.get(), PING_SECONDS)
        except TimeoutError:
            yield f": ping\nid: {feed.position}\n\n"
            continue
        items = [item]
        while not listener.waiting.empty() and len(items) < MAX_TOGETHER:
            items.append(listener.waiting.get_nowait())
        # Send all queued events in one write: with many readers, writes cost more than bytes.
        text = "".join(_message(each) for each in items if each is not None)
        if text:
            yield text
        if None in items:
            return
        if listener.cut_off and listener.waiting.empty():
            yield "event: cut_off\ndata: {}\n\n"
            return


def _message(item: FeedItem) -> str:
    """The event as it is sent; made once for all readers."""
    if item.text is None:
        data = json.dumps(encode(item.event), ensure_ascii=False, separators=(",", ":"))
        item.text = f"id: {item.position}\nevent: {item.event.type.value}\ndata: {data}\n\n"
    return item.text


_TYPES: Final = _Words("types of events, separated by commas", frozenset(map(str, EventType)))

ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/events/stream",
        summary="New events as they are written, as server-sent events.",
        handler=stream,
        needs=Needs(Scope.READ),
        about=_about,
        parameters=(
            Parameter("type", "only these types, separated by commas", _TYPES),
            *(
                Parameter(name, "only of these, separated by commas", _Words("ids, separated by commas"))
                for name in _IDS
            ),
            Parameter("after", "continue after this id of a message", _Position()),
            Parameter("Last-Event-ID", "the same, as browsers send it", _Position(), place="header"),
        ),
        media=MEDIA,
        tag="events",
    ),
)
