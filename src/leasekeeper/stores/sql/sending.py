"""The outbox of webhooks: which are due, who sends them, and the results.

Taking a message postpones its next attempt, so that no other sender takes it meanwhile, and others send it if its
sender dies. Each host gets only a few messages per read, so that one host does not delay the others.
"""

from collections.abc import Sequence
from datetime import timedelta

from leasekeeper.core.alerts import EndpointState
from leasekeeper.core.decisions import Decision
from leasekeeper.core.deliveries import (
    GONE,
    Attempt,
    Delivery,
    DeliveryRequest,
    DeliveryState,
    Due,
    after_attempt,
    bridge_url,
    chosen,
    replayed,
    taken,
    unsendable,
)
from leasekeeper.core.events import EventType
from leasekeeper.core.records import evolve
from leasekeeper.errors import NotFound
from leasekeeper.ports import Decided
from leasekeeper.stores.sql.alerts import endpoints
from leasekeeper.stores.sql.codec import clean, decoder, encoder, from_us, to_us
from leasekeeper.stores.sql.endpoints import disable_gone
from leasekeeper.stores.sql.engine import Context, Params, Tx
from leasekeeper.stores.sql.log import Log

read_delivery = decoder(Delivery)
_write_delivery = encoder(Delivery)
_MOVING = ("seq", "state", "due_at", "attempts", "spent", "attempted_at", "answer", "ended_at")

MAX_HOSTS = 500


def due(tx: Tx, after: str, request: DeliveryRequest) -> tuple[list[str], str | None]:
    """The ids of due messages, the first message of each host before any second one. Also returns the host to continue
    after, if there are more hosts than one read covers, else None."""
    now, _ = tx.clock()
    if request.bridge is not None:
        of_bridge = {"host": bridge_url(request.bridge), "now": to_us(now), "limit": request.limit}
        (rows,) = tx.read(("due_deliveries_of", of_bridge))
        return [row["delivery_id"] for row in rows], None
    asked = {"after": after, "now": to_us(now), "hosts": MAX_HOSTS, "each": request.each}
    asked |= {"callbacks": int(request.callbacks), "endpoints": int(request.endpoints)}
    (rows,) = tx.read(("due_deliveries", asked))
    hosts = sorted({row["host"] for row in rows})
    found = [Due(row["delivery_id"], row["host"], from_us(row["due_at"])) for row in rows if row["due_at"] is not None]
    return chosen(found, request), hosts[-1] if len(hosts) == MAX_HOSTS else None


def take(tx: Tx, ctx: Context, ids: Sequence[str], reserve_for: timedelta) -> list[Delivery]:
    """Take the messages that are still due, without those that another transaction has locked. A message to an endpoint
    that is not active is given up."""
    now, (rows,) = tx.clock(("lock_deliveries_free", {"ids": ids}))
    active = {each.endpoint_id for each in endpoints(tx) if each.state is EndpointState.ACTIVE}
    found = [
        taken(delivery, now=now, reserve_for=reserve_for)
        if delivery.endpoint_id is None or delivery.endpoint_id in active
        else unsendable(delivery, now=now)
        for delivery in map(read_delivery, rows)
        if delivery.state is DeliveryState.PENDING and delivery.due_at <= now
    ]
    if found:
        tx.write("update_deliveries", [_changed(delivery) for delivery in found])
    log = Log(ctx, now)
    for delivery in found:
        if delivery.state is DeliveryState.EXHAUSTED:
            _log_outcome(log, EventType.WEBHOOK_EXHAUSTED, delivery)
    log.save(tx)
    return [delivery for delivery in found if delivery.state is DeliveryState.PENDING]


def settle(tx: Tx, ctx: Context, attempts: Sequence[Attempt]) -> list[Delivery]:
    """Store the results of attempts. Returns the messages that changed: a late result may change nothing."""
    # Of several attempts for one message, an accepted one wins, then the newest.
    wanted = {attempt.delivery_id: attempt for attempt in sorted(attempts, key=lambda a: (a.accepted, a.number))}
    gone = any(attempt.status == GONE for attempt in attempts)
    # The fleet's lock is taken before all others: an endpoint that answered with HTTP 410 is disabled.
    queries: list[tuple[str, Params]] = [("lock_fleet", {})] if gone else []
    now, (*_, rows) = tx.clock(*queries, ("lock_deliveries", {"ids": sorted(wanted)}))
    log = Log(ctx, now)
    changed = []
    for delivery in map(read_delivery, rows):
        attempt = evolve(wanted[delivery.delivery_id], answer=clean(wanted[delivery.delivery_id].answer))
        after = after_attempt(delivery, attempt, now=now, jitter=ctx.jitter())
        if after is None:
            continue
        changed.append(after)
        if after.state is not DeliveryState.PENDING:
            delivered = after.state is DeliveryState.DELIVERED
            _log_outcome(log, EventType.WEBHOOK_DELIVERED if delivered else EventType.WEBHOOK_EXHAUSTED, after)
    if changed:
        tx.write("update_deliveries", [_changed(delivery) for delivery in changed])
    left = {each.endpoint_id for each in changed if wanted[each.delivery_id].status == GONE and each.endpoint_id}
    if left:
        disable_gone(tx, log, left)
    log.save(tx)
    return changed


def replay(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Make a message due again, as a person decided."""
    now, (rows,) = tx.clock(("lock_deliveries", {"ids": [decision.id]}))
    if not rows:
        raise NotFound(f"there is no webhook {decision.id}", what="webhook", id=decision.id)
    delivery = read_delivery(rows[0])
    again = replayed(delivery, now=now)
    tx.write("update_deliveries", [_changed(again)])
    log = Log(ctx, now)
    _log_outcome(log, EventType.WEBHOOK_REPLAYED, delivery, actor=decision.actor, note=decision.note)
    log.save(tx)
    return Decided(state=again.state, version=0)


def _changed(delivery: Delivery) -> dict[str, object]:
    row = _write_delivery(delivery)
    return {name: row[name] for name in _MOVING}


def _log_outcome(log: Log, kind: EventType, delivery: Delivery, *, actor: str = "", note: str | None = None) -> None:
    data = {
        "delivery_id": delivery.delivery_id,
        "type": delivery.type,
        "host": delivery.host,
        "attempts": delivery.tries,
        "answer": delivery.answer,
    }
    log.event(kind, job_id=delivery.job_id, actor=actor, data=data if note is None else {**data, "note": note})
