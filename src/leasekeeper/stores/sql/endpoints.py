"""Registered endpoints in the tables: added with their secret, changed by people, disabled by HTTP 410."""

from collections.abc import Collection

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.alerts import (
    ENDPOINT_EVENTS,
    MAX_ENDPOINTS,
    PING,
    Endpoint,
    NewEndpoint,
    endpoint_decided,
    endpoint_gone,
    secret_of,
)
from leasekeeper.core.decisions import Action, Decision
from leasekeeper.core.events import EventType
from leasekeeper.core.secrets import SealedSecret, Secret
from leasekeeper.errors import Conflict, InputError, NotFound
from leasekeeper.ports import Decided
from leasekeeper.stores.sql.alerts import forget, read_endpoint
from leasekeeper.stores.sql.codec import clean, encoder
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.log import Log

_write_endpoint = encoder(Endpoint)
_write_secret = encoder(Secret)


def add(tx: Tx, ctx: Context, new: NewEndpoint, sealed: SealedSecret, actor: str) -> Endpoint:
    """Register a receiver and keep its secret."""
    # Under the fleet's lock: the revision changes, and two calls that add the same id must not both succeed.
    now, (_, same, others) = tx.clock(
        ("lock_fleet", {}), ("lock_endpoints", {"ids": [new.endpoint_id]}), ("all_endpoints", {})
    )
    if same:
        raise Conflict(
            f"there is an endpoint {new.endpoint_id} already; remove it first, or choose another id",
            cause=ConflictReason.ENDPOINT_EXISTS,
        )
    if len(others) >= MAX_ENDPOINTS:
        raise InputError(f"there are {MAX_ENDPOINTS} endpoints already, the maximum; remove one first")
    endpoint = Endpoint(
        endpoint_id=new.endpoint_id,
        url=new.url,
        events=tuple(dict.fromkeys(new.events)),
        description=clean(new.description),
        created_at=now,
        created_by=actor,
        changed_at=now,
    )
    secret = Secret(name=sealed.name, key_id=sealed.key_id, created_at=now, updated_at=now, updated_by=actor)
    tx.write("put_secrets", [{**_write_secret(secret), "sealed": sealed.sealed}])
    _put(tx, endpoint)
    log = Log(ctx, now)
    _log_event(log, EventType.ENDPOINT_ADDED, endpoint, actor)
    log.save(tx)
    return endpoint


def decide(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Ping, disable, enable or remove an endpoint, as a person decided."""
    now, (_, rows) = tx.clock(("lock_fleet", {}), ("lock_endpoints", {"ids": [decision.id]}))
    if not rows:
        raise NotFound(f"there is no endpoint {decision.id}", what="endpoint", id=decision.id)
    endpoint = read_endpoint(rows[0])
    after = endpoint_decided(endpoint, decision, now)
    log = Log(ctx, now)
    if decision.action is Action.PING:
        log.notify_endpoint(endpoint, PING, None, {"endpoint_id": endpoint.endpoint_id, "note": decision.note})
    if after is None:
        tx.write("delete_endpoint", [{"id": decision.id}])
        tx.write("delete_secret", [{"id": secret_of(decision.id)}])
        _count_change(tx)
    elif after is not endpoint:
        _put(tx, after)
    _log_event(log, ENDPOINT_EVENTS[decision.action], endpoint, decision.actor, note=decision.note)
    log.save(tx)
    return Decided(state="removed" if after is None else after.state.value, version=0)


def disable_gone(tx: Tx, log: Log, ids: Collection[str]) -> None:
    """Disable endpoints that answered with HTTP 410 (gone). The caller has locked the fleet."""
    (rows,) = tx.read(("lock_endpoints", {"ids": sorted(ids)}))
    for endpoint in map(read_endpoint, rows):
        after = endpoint_gone(endpoint, log.now)
        if after is not None:
            _put(tx, after)
            _log_event(log, EventType.ENDPOINT_DISABLED, after, "", note=after.reason)


def _put(tx: Tx, endpoint: Endpoint) -> None:
    tx.write("put_endpoints", [_write_endpoint(endpoint)])
    _count_change(tx)


def _count_change(tx: Tx) -> None:
    """Count a change of the configuration, so that every process reads the endpoints again."""
    tx.write("count_change", [{"changes": 1}])
    forget(tx)


def _log_event(log: Log, kind: EventType, endpoint: Endpoint, actor: str, *, note: str | None = None) -> None:
    data = {"endpoint_id": endpoint.endpoint_id, "events": " ".join(endpoint.events)}
    log.event(kind, actor=actor, data=data if note is None else {**data, "note": note})
