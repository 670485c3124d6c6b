"""Warm hand-over: a run ends and the next job of its profile begins in the same open browser, in one commit."""

from collections.abc import Sequence

from leasekeeper.core.leases import lease_key
from leasekeeper.core.settle import Ending, may_hand_over
from leasekeeper.ports import ClaimRequest, HandedOver
from leasekeeper.stores.sql import claiming, settling
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.lanes import lock


class NobodyWaits(Exception):
    """There is no next job for this browser: the transaction is rolled back."""


def hand_over(
    tx: Tx, ctx: Context, ending: Ending, request: ClaimRequest, tasks: Sequence[str]
) -> tuple[HandedOver, list[str]]:
    """Settle one run and grant the next job of the same profile. Returns both, and the account keys that are free now.
    Raises NobodyWaits if there is no such job: then nothing was changed."""
    key = lease_key(ending.ref.lease_id)
    locked = claiming.lock_account(tx, ending.ref.profile_id)
    _, works, _ = lock(tx, [ending.ref.profile_id])
    work = works.get(ending.ref.profile_id)
    if work is not None:
        claiming.lock_account_after_all(tx, work, locked=locked)
    lease = next((o for o in work.live if key is not None and o.token == key[1]), None) if work else None
    if lease is not None and may_hand_over(lease, ending) is not None:
        raise NobodyWaits
    (settled,), freed = settling.settle(tx, ctx, [ending])
    if settled.refused is not None:
        return HandedOver(settled=settled), []
    grant = claiming.claim_lane(tx, ctx, request, ending.ref.profile_id, tasks)
    if grant is None:
        raise NobodyWaits
    return HandedOver(settled=settled, grant=grant), freed
