"""Revokes leases by a person's decision: the holder cannot write any more."""

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.events import EventType
from leasekeeper.core.leases import Lease, LeaseStatus, lease_key
from leasekeeper.core.records import evolve
from leasekeeper.errors import Conflict
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.heartbeats import renewal_row
from leasekeeper.stores.sql.lanes import lock
from leasekeeper.stores.sql.log import Log


def revoke(tx: Tx, ctx: Context, lease_id: str, actor: str, note: str) -> Lease | None:
    """Revoke a live lease, so that all its writes are refused. Returns None if there is no such lease.

    The holder may not know it yet, so the profile stays leased until the lease would have expired. Then the lease ends
    like any other that expired.
    """
    key = lease_key(lease_id)
    if key is None:
        return None
    now, works, _ = lock(tx, [key[0]])
    work = works.get(key[0])
    lease = next((o for o in work.live if o.token == key[1]), None) if work else None
    if work is None or lease is None:
        return None
    if lease.status is LeaseStatus.REVOKED:
        raise Conflict(
            f"lease {lease_id} was revoked already; its profile stays leased until it expires",
            cause=ConflictReason.LEASE_REVOKED,
            lease_id=lease_id,
            profile_id=lease.profile_id,
            until_at=lease.expires_at,
        )
    revoked = evolve(lease, status=LeaseStatus.REVOKED)
    tx.write("renew_runs", [renewal_row(revoked)])
    log = Log(ctx, now)
    log.event(
        EventType.LEASE_REVOKED,
        lease=lease,
        actor=actor,
        profile_state=work.lane.state,
        data={"token": lease.token, "note": note},
    )
    log.save(tx)
    return revoked
