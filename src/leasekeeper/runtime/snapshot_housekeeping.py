"""Deletes snapshots' objects that are no longer needed from the profile store.

First those that retention has discarded, each object before its record: if a process dies in between, the next one
finishes. Then objects that were uploaded and never settled, found by listing the store: only of profiles that this
store knows, and only after a day. Also after a day, the parts that interrupted uploads left in a folder.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from leasekeeper.config import BrowserConfig
from leasekeeper.core.fleet import STORE, Fleet
from leasekeeper.core.profiles import Lane
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.errors import EvidenceUnavailable, LeasekeeperError, NotFound
from leasekeeper.evidence.places import SERVER
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Store
from leasekeeper.snapshots.profile_store import KEY, ProfileStore, own_profile_store, store_without_keys

_LOG = logging.getLogger(__name__)

# Much longer than an upload may take: what is older will not be settled any more.
ORPHAN_AGE: Final = timedelta(days=1)
MAX_PAGES: Final = 100
_NOWHERE: Final = "server-"  # never written: a dry run shows what it would replace


async def fleet_profile_store(store: Store) -> str | None:
    """The fleet's profile store; None if it has none. Found by a dry run of a change: nothing is written."""
    for change in await store.apply(Fleet(profile_store=_NOWHERE), actor="leasekeeper", dry_run=True):
        if change.what == STORE:
            before = change.fields.get(STORE, (None, None))[0]
            return None if before is None else str(before)
    return None


async def place_to_keep(store: Store, config: BrowserConfig) -> ProfileStore | None:
    """The profile store that this process cleans up; None if there is none, or its server does that."""
    text = config.profile_store or await fleet_profile_store(store)
    if not text:
        return None
    if text == SERVER:
        return own_profile_store(config) if config.server is None else None
    return store_without_keys(text, config)


async def keep_snapshots_in_order(store: Store, config: BrowserConfig) -> int:
    """Delete objects that are no longer needed. Returns how many. If the profile store is unavailable, that is logged,
    and tried again next time."""
    try:
        place = await place_to_keep(store, config)
        if place is None or not place.lists:
            return 0
        total = await delete_discarded(store, place) + await delete_orphans(store, place)
        return total + await place.delete_parts(datetime.now(UTC) - ORPHAN_AGE)
    except EvidenceUnavailable as error:
        _LOG.warning("old snapshots were not deleted: %s", error)
    except LeasekeeperError as error:
        _LOG.warning("old snapshots were not deleted: %s: %s", error.code, error)
    return 0


async def delete_discarded(store: Store, place: ProfileStore) -> int:
    """Delete the objects of discarded snapshots, then their records. Returns how many."""
    total = 0
    for _ in range(MAX_PAGES):
        page = await store.find(Snapshot, {"discarded": "1"}, limit=MAX_IN_PAGE)
        if not page.items:
            break
        await place.delete([each.place for each in page.items])
        await store.forget_snapshots([each.snapshot_id for each in page.items])
        total += len(page.items)
    return total


async def delete_orphans(store: Store, place: ProfileStore, now: datetime | None = None) -> int:
    """Delete objects that no ending ever named, once they are old enough. Returns how many."""
    before = (now or datetime.now(UTC)) - ORPHAN_AGE
    found: Mapping[str, list[str]] = defaultdict(list)
    async for entry in place.entries():
        name = KEY.fullmatch(entry.key)
        if name is not None and entry.changed_at < before:
            found[name["profile"]].append(entry.key)
    total = 0
    for profile_id, keys in found.items():
        named = await _named(store, profile_id)
        orphans = [] if named is None else [key for key in keys if key not in named]
        if orphans:
            await place.delete(orphans)
            total += len(orphans)
    return total


async def _named(store: Store, profile_id: str) -> set[str] | None:
    """The objects that snapshots of a profile name; None if this store does not know the profile.

    A profile that was removed from the fleet still has its snapshots: declared again, it goes on from the newest.
    """
    named: set[str] = set()
    after: str | None = None
    while True:
        page = await store.find(Snapshot, {"profile_id": profile_id}, after=after, limit=MAX_IN_PAGE)
        named |= {each.place for each in page.items}
        after = page.after
        if after is None:
            return named if named or await _is_declared(store, profile_id) else None


async def _is_declared(store: Store, profile_id: str) -> bool:
    try:
        await store.get(Lane, profile_id)
    except NotFound:
        return False
    return True
