"""`/ui/live`: tells a page that something changed, so that it reloads its content. Sends no data of any record, and at
most a few messages per second.
"""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

from starlette.responses import Response

from leasekeeper.core.ids import is_number
from leasekeeper.errors import EventsGone
from leasekeeper.service.event_feed import EventFeed, Listener
from leasekeeper.service.event_stream import EventStream
from leasekeeper.service.pages.signing_in import COOKIE
from leasekeeper.service.pages.visit import Visit
from leasekeeper.service.routes.live import PING_SECONDS

# The records that a page can subscribe to.
ABOUT: Final = ("profile_id", "job_id", "run_id", "account_id")
RETRY_MS: Final = 2_000
GATHER_SECONDS: Final = 0.25


async def view(visit: Visit) -> Response:
    """A stream that ends when the reader is gone, its token is refused, or the server stops."""
    feed = await visit.service.signals.feed()
    wanted = {name: frozenset({visit.query[name]}) for name in ABOUT if name in visit.query}
    if visit.token.accounts:
        wanted["account_id"] = frozenset(visit.token.accounts)
    after = visit.query.get("after", "")
    # Announce changes since the page was rendered, and also if it is no longer known whether there were any.
    listener = feed.listen(wanted, after=int(after)) if is_number(after) else None
    missed = listener is None and after != ""
    listener = listener or feed.listen(wanted)
    if listener is None:
        raise EventsGone("too many pages are open already: this one does not refresh itself", position="")
    return EventStream(
        _pulses(feed, listener, missed=missed),
        auth=visit.service.auth,
        token=visit.request.cookies.get(COOKIE, ""),
        leave=partial(feed.leave, listener),
    )


async def _pulses(feed: EventFeed, listener: Listener, *, missed: bool) -> AsyncGenerator[str, None]:
    yield f"retry: {RETRY_MS}\n\n" + (_change(feed.position) if missed else "")
    while True:
        try:
            change = await asyncio.wait_for(listener.waiting.get(), PING_SECONDS)
        except TimeoutError:
            yield ": ping\n\n"
            continue
        if change is not None and not listener.cut_off:
            await asyncio.sleep(GATHER_SECONDS)
        while change is not None and not listener.waiting.empty():
            change = listener.waiting.get_nowait()
        yield _change(feed.position if change is None else change.event.seq)
        if change is None or listener.cut_off:
            return


def _change(seq: int) -> str:
    """With the number of the last event: a page that was rendered later ignores it."""
    return f"event: change\ndata: {seq}\n\n"
