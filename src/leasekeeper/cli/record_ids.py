"""Ids as people type them: whole, or the beginning of one, as long as only one record has it.

The store finds them along its index. A beginning that several records share is refused with their ids.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from leasekeeper.core.accounts import Account, Proxy
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.schedules import Schedule, ScheduleState
from leasekeeper.core.workers import Worker
from leasekeeper.errors import AmbiguousId, NotFound, nearest
from leasekeeper.lists import LISTS, MAX_IN_PAGE, PREFIX

if TYPE_CHECKING:
    from leasekeeper.ports import Store

MAX_NAMED: Final = 8
_NAMED_BY_PEOPLE: Final = frozenset({Account, Lane, Profile, Proxy, Schedule, ScheduleState})
_SHOWN_SHORT: Final[Mapping[str, type]] = {"job_id": Job, "run_id": RunRecord}


async def whole_id(store: "Store", kind: type, text: str) -> str:
    """The id that this is, or is the beginning of. Raises NotFound or AmbiguousId."""
    listing = LISTS[kind]
    key = listing.key or ""
    records: Sequence[object] = (await store.find(kind, {PREFIX: text}, limit=MAX_NAMED)).items if text else ()
    found = sorted(str(getattr(record, key)) for record in records)
    if text in found or len(found) == 1:
        return text if text in found else found[0]
    if not found:
        return await _not_by_its_beginning(store, kind, text)
    raise _ambiguous(listing.what, text, found)


async def _not_by_its_beginning(store: "Store", kind: type, text: str) -> str:
    """Leases that have ended are found by their whole id alone."""
    listing = LISTS[kind]
    records: Sequence[object] = (await store.find(kind, {listing.key or "": text}, limit=1)).items
    if not records:
        meant = await nearest_id(store, kind, text)
        hint = f"; did you mean {meant}?" if meant else ""
        raise NotFound(f"there is no {listing.what} {text}{hint}", what=listing.what, id=text)
    return text


async def nearest_id(store: "Store", kind: type, text: str) -> str | None:
    """The most similar id, for a hint. Only for kinds whose ids people chose; compares the first ones of many."""
    listing = LISTS[kind]
    if kind not in _NAMED_BY_PEOPLE or not text:
        return None
    records: Sequence[object] = (await store.find(kind, limit=MAX_IN_PAGE)).items
    return nearest(text, [str(getattr(record, listing.key or "")) for record in records])


async def whole_ids(store: "Store", kind: type, texts: Sequence[str]) -> list[str]:
    """Each id once, in the order given."""
    return list(dict.fromkeys([await whole_id(store, kind, text) for text in texts]))


async def worker_name(store: "Store", text: str) -> str:
    """The name of a worker that this is, or is the beginning of; a text that matches none stays as it is. Raises
    AmbiguousId.
    """
    workers = (await store.find(Worker, limit=MAX_IN_PAGE)).items
    found = sorted({each.worker_id for each in workers if each.worker_id.startswith(text)}) if text else []
    if text in found or not found:
        return text
    if len(found) > 1:
        raise _ambiguous("worker", text, found)
    return found[0]


def _ambiguous(what: str, text: str, found: Sequence[str]) -> AmbiguousId:
    more = ", …" if len(found) >= MAX_NAMED else ""
    named = tuple(found[:MAX_NAMED])
    said = f"{text} is the beginning of several {what} ids: {', '.join(named)}{more}"
    return AmbiguousId(said, what=what, id=text, ids=named)


async def with_whole_ids(store: "Store", where: Mapping[str, str]) -> dict[str, str]:
    """Filters, with the whole id of a job or run in place of its beginning: lists show those ids short.

    An id that is not found stays as it is: events may be about a job that was deleted.
    """
    found = dict(where)
    for name, kind in _SHOWN_SHORT.items():
        if name in where:
            with suppress(NotFound):
                found[name] = await whole_id(store, kind, where[name])
    return found
