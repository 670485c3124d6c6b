"""The part of the Store port about lost leases that wait for a resolution: who asks their launchers, and when.

See ports.Store. `core.resolving` decides what a launcher's answer means, `settling` writes it.
"""

from collections.abc import Sequence
from datetime import timedelta

from leasekeeper.core.ids import LeaseId
from leasekeeper.core.launchers import may_be_asked
from leasekeeper.core.leases import Lease, lease_key
from leasekeeper.ports import MAX_IN_BATCH
from leasekeeper.stores.sql.checks import check_batch
from leasekeeper.stores.sql.codec import from_us, to_us
from leasekeeper.stores.sql.engine import Tx
from leasekeeper.stores.sql.lanes import lock_runs, read_lease
from leasekeeper.stores.sql.repeated_calls import NOTHING, RepeatableOperations


class LauncherCheckOperations(RepeatableOperations):
    """Unresolved leases, and reservations of launcher checks. A part of `SqlStore`."""

    async def unresolved(self, limit: int = MAX_IN_BATCH) -> list[Lease]:
        return await self._engine.view(lambda tx: _unresolved(tx, limit))

    async def reserve_launcher_checks(self, lease_ids: Sequence[LeaseId], reserve_for: timedelta) -> list[LeaseId]:
        check_batch(lease_ids, "leases")
        if not lease_ids:
            return []
        return await self._change(
            lambda tx: _reserve(tx, lease_ids, reserve_for), answer=lambda found: found or NOTHING
        )


def _unresolved(tx: Tx, limit: int) -> list[Lease]:
    """Leases that wait for a resolution. Those whose launcher did not answer come last, once they are due again."""
    now, _ = tx.clock()
    (rows,) = tx.read(("unresolved_runs", {"now": to_us(now), "limit": limit}))
    return [read_lease(row) for row in rows]


def _reserve(tx: Tx, lease_ids: Sequence[LeaseId], reserve_for: timedelta) -> list[LeaseId]:
    wanted = {key: lease_id for lease_id in lease_ids if (key := lease_key(lease_id)) is not None}
    now, works, _ = lock_runs(tx, [(profile_id, lease_id) for (profile_id, _), lease_id in wanted.items()])
    found, rows = [], []
    for (profile_id, token), lease_id in wanted.items():
        work = works.get(profile_id)
        if work is None or not any(o.token == token and o.unresolved for o in work.open):
            continue
        (runs,) = tx.read(("run_by_token", {"profile_id": profile_id, "token": token}))
        due_at = None if runs[0]["ask_at"] is None else from_us(runs[0]["ask_at"])
        if may_be_asked(token, work.lane.token, due_at, now):
            ask_at = to_us(now + reserve_for)
            rows.append({"profile_id": profile_id, "token": token, "ask_at": ask_at, "asked": True})
            found.append(lease_id)
    if rows:
        tx.write("ask_again", rows)
    return found
