"""How long evidence is kept, in any place: a rule about age and size, over the folders of runs."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from leasekeeper.evidence_port import Evidence

# A folder that changed more recently than this may belong to a run that started after the caller listed those in use.
MIN_AGE: Final = timedelta(minutes=10)
MAX_IN_DELETE: Final = 1_000
# The format of run ids. A folder with any other name was not created by us, and is never deleted.
RUN_ID: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is older than `older_than` is deleted, then the oldest until `max_bytes` are left; None: no limit."""

    older_than: timedelta | None
    max_bytes: int | None

    def exceeded(self, changed_at: float, left: int, now: float) -> bool:
        """Whether to delete a folder that last changed at that time, while `left` bytes are stored in all."""
        if changed_at > now - MIN_AGE.total_seconds():
            return False
        too_old = self.older_than is not None and changed_at < now - self.older_than.total_seconds()
        return too_old or (self.max_bytes is not None and left > self.max_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What was deleted, and what is left."""

    run_ids: tuple[str, ...] = ()
    bytes_freed: int = 0
    bytes_left: int = 0


@dataclass(slots=True)
class _Folder:
    keys: list[str]
    size: int = 0
    changed_at: float = 0.0


async def prune_place(
    place: Evidence, limits: Limits, *, in_use: Collection[str] = (), now: datetime | None = None
) -> Pruned:
    """Delete what exceeds the limits from a place that can list its objects. Safe to run in several processes, and to
    interrupt.
    """
    at = (now or datetime.now(UTC)).timestamp()
    folders: dict[str, _Folder] = {}
    async for entry in place.entries():
        run_id = entry.key.partition("/")[0]
        if RUN_ID.fullmatch(run_id) is not None:
            folder = folders.setdefault(run_id, _Folder([]))
            folder.keys.append(entry.key)
            folder.size += entry.size
            folder.changed_at = max(folder.changed_at, entry.changed_at.timestamp())
    left, freed, gone = sum(folder.size for folder in folders.values()), 0, []
    for run_id, folder in sorted(folders.items(), key=lambda item: (item[1].changed_at, item[0])):
        if run_id not in in_use and limits.exceeded(folder.changed_at, left, at):
            for first in range(0, len(folder.keys), MAX_IN_DELETE):
                await place.delete(folder.keys[first : first + MAX_IN_DELETE])
            gone.append(run_id)
            left, freed = left - folder.size, freed + folder.size
    return Pruned(run_ids=tuple(gone), bytes_freed=freed, bytes_left=left)
