"""Reads which pauses are active, for grants and for lists. `pausing` writes them."""

from datetime import datetime

from leasekeeper.core.ids import AccountId
from leasekeeper.core.pauses import Pause, Scope, is_active, pause_id_of
from leasekeeper.stores.sql.codec import decoder
from leasekeeper.stores.sql.engine import Tx

read_pause = decoder(Pause)


def active_pauses(tx: Tx, now: datetime) -> list[Pause]:
    """All active pauses."""
    (rows,) = tx.read(("all_pauses", {}))
    return [pause for pause in map(read_pause, rows) if is_active(pause, now)]


def paused(tx: Tx, now: datetime, *always: Scope, **named: str) -> list[Pause]:
    """Which of these pauses are active: `always` are scopes without a name, `named` are by scope and name
    (`pool="eu"`)."""
    ids = [pause_id_of(scope) for scope in always] + [pause_id_of(Scope(scope), name) for scope, name in named.items()]
    (rows,) = tx.read(("pauses_among", {"ids": ids}))
    return [pause for pause in map(read_pause, rows) if is_active(pause, now)]


def account_pause_is_over(tx: Tx, account_id: AccountId, now: datetime) -> bool:
    """Whether the pause of an account has reached its end, but no sweep has resumed the account yet."""
    (rows,) = tx.read(("pauses_among", {"ids": [pause_id_of(Scope.ACCOUNT, account_id)]}))
    return bool(rows) and not is_active(read_pause(rows[0]), now)
