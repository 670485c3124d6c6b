"""The fleet: profiles as a table or as a board by state, with their present holders."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import Lane, ProfileState
from leasekeeper.ports import Page
from leasekeeper.service.pages.filter_language import Asked, read_filter
from leasekeeper.service.pages.rendering import page
from leasekeeper.service.pages.visit import PER_PAGE, Visit

PER_COLUMN: Final = 24


@dataclass(frozen=True, slots=True)
class Held:
    """A profile, and the lease that it is held under."""

    lane: Lane
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class Column:
    """One state of the board. `more`: there are others in this state that it does not show."""

    state: ProfileState
    profiles: Sequence[Held]
    more: bool


async def view(visit: Visit) -> Response:
    asked = read_filter(Lane, visit.query.get("q", ""))
    board = visit.query.get("view") == "board"
    columns = await _columns(visit, asked) if board and not asked.problems else []
    rows: Page[Held] = Page(items=())
    if not board and not asked.problems:
        lanes = await visit.find(Lane, asked.where, after=visit.query.get("after"), limit=PER_PAGE)
        rows = Page(items=await with_leases(visit, lanes.items), after=lanes.after)
    return await page(visit, "fleet.html", title="Fleet", asked=asked, board=board, columns=columns, rows=rows)


async def _columns(visit: Visit, asked: Asked) -> list[Column]:
    states = [ProfileState(asked.where["state"])] if "state" in asked.where else list(ProfileState)
    pages = await asyncio.gather(
        *(visit.find(Lane, {**asked.where, "state": state.value}, limit=PER_COLUMN) for state in states)
    )
    return [
        Column(state, await with_leases(visit, found.items), found.after is not None)
        for state, found in zip(states, pages, strict=True)
    ]


async def with_leases(visit: Visit, lanes: Sequence[Lane]) -> list[Held]:
    """Each profile with its live lease, the newest if several share it."""
    leased = [lane for lane in lanes if lane.state is ProfileState.LEASED]
    found = await asyncio.gather(
        *(visit.find(Lease, {"profile_id": lane.profile_id, "live": "1"}, limit=1) for lane in leased)
    )
    leases = {lane.profile_id: each.items[0] for lane, each in zip(leased, found, strict=True) if each.items}
    return [Held(lane, leases.get(lane.profile_id)) for lane in lanes]
