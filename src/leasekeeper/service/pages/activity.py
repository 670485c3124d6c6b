"""Activity: the live event log, and charts over time: runs by result, how long jobs waited, how full pools were."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from starlette.responses import Response

from leasekeeper.core.accounts import Limit
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.leases import Lease, RunRecord, RunResult
from leasekeeper.errors import AccessDenied
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Page
from leasekeeper.service.pages.charts import highest_at_once, lines, stacked, typical_and_longest, window
from leasekeeper.service.pages.filter_language import read_filter
from leasekeeper.service.pages.rendering import field_text, page
from leasekeeper.service.pages.runs import BEGINS_TO_WAIT
from leasekeeper.service.pages.visit import PER_PAGE, Visit

MAX_POOLS: Final = 200
CHARTED_POOLS: Final = 5


async def view(visit: Visit) -> Response:
    asked = read_filter(Event, visit.query.get("q", ""))
    found: Page[Event] = Page(items=())
    listed = True
    if not asked.problems:
        try:
            found = await visit.find(Event, asked.where, after=visit.query.get("after"), limit=PER_PAGE)
        except AccessDenied:
            if "pool" not in visit.only:
                raise
            listed = False  # events belong to no pool: such a token sees those of a profile, a job or a run
    stats = await visit.stats()
    runs, leases, limits = await asyncio.gather(
        visit.find(RunRecord, {"live": "0"}, limit=MAX_IN_PAGE),
        visit.find(Lease, limit=MAX_IN_PAGE),
        visit.find_if_allowed(Limit, limit=MAX_POOLS),
    )
    kinds = (EventType.LEASE_GRANTED, *BEGINS_TO_WAIT)
    granted, *began = await asyncio.gather(*(_events(visit, each) for each in kinds))
    shows = window(
        (lease.acquired_at for lease in leases.items), stats.now, complete=leases.after is None and runs.after is None
    )
    ended = [(run.result, run.ended_at) for run in runs.items if run.ended_at is not None]
    results = stacked(
        [
            ("completed", (at for result, at in ended if result is RunResult.COMPLETED)),
            ("failed", (at for result, at in ended if result is not RunResult.COMPLETED)),
        ],
        shows,
    )
    most = {limit.pool: limit.max_leases for limit in limits}
    return await page(
        visit,
        "activity.html",
        title="Activity",
        asked=asked,
        found=found,
        listed=listed,
        results=results,
        waits=lines(typical_and_longest(waits(granted, [each for events in began for each in events]), shows), shows),
        use=lines({pool: highest_at_once(spans, shows) for pool, spans in _by_pool(leases.items)}, shows),
        pools=[(pool, stats.leases.get(pool, 0), most.get(pool)) for pool in sorted({*stats.leases, *most})],
        field_text=field_text,
    )


async def _events(visit: Visit, kind: EventType) -> Sequence[Event]:
    return await visit.find_if_allowed(Event, {"type": kind.value}, limit=MAX_IN_PAGE)


def waits(granted: Iterable[Event], began: Iterable[Event]) -> list[tuple[datetime, float]]:
    """When a job got its lease, and how many seconds after it was due. Jobs with an unknown start are left out.

    The last start of waiting counts: a job that was blocked or rescheduled starts to wait again.
    """
    begins: dict[str, list[datetime]] = {}
    for event in began:
        begins.setdefault(str(event.job_id), []).append(event.at)
    found = []
    for event in granted:
        before = [at for at in begins.get(str(event.job_id), ()) if at <= event.at]
        if event.job_id is not None and before:
            found.append((event.at, (event.at - max(before)).total_seconds()))
    return found


def _by_pool(leases: Iterable[Lease]) -> list[tuple[str, list[tuple[datetime, datetime | None]]]]:
    """The leases of each pool as spans, of the pools that had most of them."""
    pools: dict[str, list[tuple[datetime, datetime | None]]] = {}
    for lease in leases:
        pools.setdefault(lease.pool, []).append((lease.acquired_at, lease.ended_at))
    return sorted(pools.items(), key=lambda item: -len(item[1]))[:CHARTED_POOLS]
