"""Pauses of the fleet, a pool, an account or a worker: nothing new begins there until a person resumes it, or until the
pause ends."""

from contextlib import suppress
from datetime import datetime

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.pauses import Pause, Scope, is_active, named_in, pause_decided
from leasekeeper.core.records import evolve
from leasekeeper.errors import NotFound
from leasekeeper.ports import Decided
from leasekeeper.stores.sql.codec import encoder
from leasekeeper.stores.sql.deciding import decide_account
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.log import Log
from leasekeeper.stores.sql.pause_rows import read_pause
from leasekeeper.wire.encoding import encode_time

_write_pause = encoder(Pause)
_KNOWN = {Scope.POOL: "pool_known", Scope.WORKER: "worker_known"}
_TARGET = Target.PAUSE
_BY_ITSELF = "it was paused until then"


def decide_pause(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Pause or resume everything, a pool, an account or a worker."""
    now, (rows,) = tx.clock(("pauses_among", {"ids": [decision.id]}))
    scope, name = named_in(decision, now)
    after = pause_decided(decision, scope, name, read_pause(rows[0]) if rows else None, now)
    if scope is Scope.ACCOUNT:
        decided = decide_account(tx, ctx, evolve(decision, id=name))
    else:
        if after is None:
            tx.write("delete_pauses", [{"pause_id": decision.id}])
        else:
            _check_known(tx, scope, name)
        _log(tx, ctx, decision, scope, name, now)
        decided = Decided(state="active" if after is None else "paused", version=0)
    if after is not None:
        tx.write("put_pauses", [_write_pause(after)])
    return decided


def any_over(tx: Tx) -> bool:
    """Whether a pause has reached its end and `end_pauses` has to remove it."""
    now, (rows,) = tx.clock(("all_pauses", {}))
    return any(not is_active(read_pause(row), now) for row in rows)


def end_pauses(tx: Tx, ctx: Context, limit: int) -> int:
    """Remove pauses that have reached their end, each with an event, and resume their accounts. Returns how many."""
    now, (rows,) = tx.clock(("all_pauses", {}))
    over = [pause for pause in map(read_pause, rows) if not is_active(pause, now)][:limit]
    for pause in over:
        decision = Decision(
            target=_TARGET, id=pause.pause_id, action=Action.RESUME, note=_BY_ITSELF, actor="leasekeeper"
        )
        if pause.scope is Scope.ACCOUNT:
            with suppress(NotFound):  # it was removed from the fleet meanwhile
                decide_account(tx, ctx, evolve(decision, id=pause.name))
        else:
            _log(tx, ctx, decision, pause.scope, pause.name, now)
        tx.write("delete_pauses", [{"pause_id": pause.pause_id}])
    return len(over)


def _check_known(tx: Tx, scope: Scope, name: str) -> None:
    """Raise NotFound for an unknown pool or worker: a mistyped name must not look like a pause."""
    if scope in _KNOWN:
        (rows,) = tx.read((_KNOWN[scope], {"name": name}))
        if not rows:
            raise NotFound(f"there is no {scope} {name}", what=str(scope), id=name)


def _log(tx: Tx, ctx: Context, decision: Decision, scope: Scope, name: str, now: datetime) -> None:
    log = Log(ctx, now)
    data = {"scope": scope.value, "name": name, "note": decision.note}
    if decision.until is not None:
        data["until"] = encode_time(decision.until)
    kind = EventType.PAUSED if decision.action is Action.PAUSE else EventType.RESUMED
    log.event(kind, actor=decision.actor, data=data)
    log.save(tx)
