"""Rate limits for calls of an API, shared by all processes: one row per key has the time of the next free call."""

from datetime import timedelta

from leasekeeper.core.launchers import next_turn
from leasekeeper.stores.sql.codec import from_us, to_us
from leasekeeper.stores.sql.engine import Tx


def reserve_call(tx: Tx, key: str, spacing: timedelta, pause: timedelta) -> timedelta:
    """Reserve the next call. Returns how long the caller must wait before it."""
    tx.read(("lock_calls", {"key": key}))
    now, (rows,) = tx.clock(("call_turn", {"key": key}))
    known = rows[0]["next_at"] if rows else None
    turn, following = next_turn(now, None if known is None else from_us(known), spacing, pause)
    tx.write("put_call_turns", [{"key": key, "next_at": to_us(following)}])
    return turn - now
