"""`/ui/live`: says that something changed, so that a page reads itself again. Carries no data of any record.

However many events come, a page hears of them at most a few times a second.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response, StreamingResponse

from leasekeeper.errors import EventsGone
from leasekeeper.lists import is_number
from leasekeeper.service.event_feed import EventFeed, Listener
from leasekeeper.service.pages.visit import Visit
from leasekeeper.service.routes.live import MEDIA, PING_SECONDS

# What a page may be about.
ABOUT: Final = ("profile_id", "job_id", "run_id", "account_id")
RETRY_MS: Final = 2_000
GATHER_SECONDS: Final = 0.25
CHANGE: Final = "event: change\ndata: 1\n\n"
_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}


async def view(visit: Visit) -> Response:
    """A stream that ends when the reader is gone or the server stops."""
    feed = await visit.service.signals.feed()
    wanted = {name: frozenset({visit.query[name]}) for name in ABOUT if name in visit.query}
    if visit.token.accounts:
        wanted["account_id"] = frozenset(visit.token.accounts)
    after = visit.query.get("after", "")
    # What happened since the page was read is announced; so is that nobody can say any more what did.
    listener = feed.listen(wanted, after=int(after)) if is_number(after) else None
    missed = listener is None and after != ""
    listener = listener or feed.listen(wanted)
    if listener is None:
        raise EventsGone("too many pages are open already: this one does not refresh itself", position="")
    return StreamingResponse(_pulses(feed, listener, missed=missed), media_type=MEDIA, headers=_HEADERS)


async def _pulses(feed: EventFeed, listener: Listener, *, missed: bool) -> AsyncIterator[str]:
    try:
        yield f"retry: {RETRY_MS}\n\n" + (CHANGE if missed else "")
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
            yield CHANGE
            if change is None or listener.cut_off:
                return
    finally:
        feed.leave(listener)
