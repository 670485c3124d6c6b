"""Reads which workers are live, for lists and for reserved profiles. `deciding` writes their reports."""

from datetime import datetime

from leasekeeper.core.workers import Worker
from leasekeeper.stores.sql.codec import decoder, to_us
from leasekeeper.stores.sql.engine import Context, Tx

read_worker = decoder(Worker)


def live_workers(tx: Tx, ctx: Context, now: datetime) -> list[Worker]:
    """Workers whose last report is recent and that have not stopped."""
    (rows,) = tx.read(("live_workers", {"since": to_us(now - ctx.policy.worker_ttl)}))
    return list(map(read_worker, rows))
