"""Stored secrets in the tables, as ciphertext only: read by name, or by the holder of a live lease."""

from collections.abc import Sequence

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.alerts import SECRET_PREFIX
from leasekeeper.core.events import EventType
from leasekeeper.core.leases import LeaseRef, Refusal
from leasekeeper.core.records import evolve
from leasekeeper.core.secrets import REFERENCE, LeaseSecret, SealedSecret, Secret, payload_secrets
from leasekeeper.errors import Conflict, NotFound, VersionConflict
from leasekeeper.stores.sql.codec import decoder, encoder
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.lanes import read_job, refused
from leasekeeper.stores.sql.log import Log

_MAX_NAMED = 3  # proxies that a message names

_read_secret = decoder(Secret)
_write_secret = encoder(Secret)
_read_sealed = decoder(SealedSecret)


def put(tx: Tx, ctx: Context, sealed: SealedSecret, actor: str, replaces: int | None) -> Secret:
    """Store a new secret or replace its value. With `replaces`, only if that is its current version, else raises
    VersionConflict."""
    # Under the fleet's lock: two concurrent calls with the same new name must not both create version 1.
    now, (_, rows) = tx.clock(("lock_fleet", {}), ("lock_secrets", {"names": [sealed.name]}))
    old = _read_secret(rows[0]) if rows else None
    if replaces is not None and (old is None or old.version != replaces):
        raise VersionConflict(f"secret {sealed.name} was changed or removed since version {replaces}", version=replaces)
    secret = (
        Secret(name=sealed.name, key_id=sealed.key_id, created_at=now, updated_at=now, updated_by=actor)
        if old is None
        else evolve(old, key_id=sealed.key_id, version=old.version + 1, updated_at=now, updated_by=actor)
    )
    tx.write("put_secrets", [{**_write_secret(secret), "sealed": sealed.sealed}])
    log = Log(ctx, now)
    data = {"name": secret.name, "key_id": secret.key_id, "version": secret.version, "rotated": replaces is not None}
    log.event(EventType.SECRET_STORED, actor=actor, data=data)
    log.save(tx)
    return secret


def remove(tx: Tx, ctx: Context, name: str, actor: str, note: str) -> None:
    """Delete a secret. Raises Conflict if a proxy or an endpoint uses it."""
    # Under the fleet's lock: a concurrent `apply` may be about to use the secret.
    now, (_, rows, proxies, endpoints) = tx.clock(
        ("lock_fleet", {}),
        ("lock_secrets", {"names": [name]}),
        ("proxies_with_credentials", {"credentials": REFERENCE + name, "limit": _MAX_NAMED}),
        ("lock_endpoints", {"ids": [name.removeprefix(SECRET_PREFIX)]}),
    )
    if not rows:
        raise NotFound(f"there is no secret {name}", what="secret", id=name)
    if proxies:
        named = ", ".join(row["proxy_id"] for row in proxies)
        raise Conflict(
            f"secret {name} is in use by proxy {named}: change its credentials first, then remove the secret",
            cause=ConflictReason.SECRET_IN_USE,
        )
    if endpoints and name.startswith(SECRET_PREFIX):
        raise Conflict(
            f"secret {name} signs the webhooks of endpoint {endpoints[0]['endpoint_id']}: remove that endpoint instead",
            cause=ConflictReason.SECRET_IN_USE,
        )
    tx.write("delete_secret", [{"id": name}])
    log = Log(ctx, now)
    log.event(EventType.SECRET_REMOVED, actor=actor, data={"name": name, "note": note})
    log.save(tx)


def sealed_by_name(tx: Tx, names: Sequence[str]) -> list[SealedSecret]:
    """The secrets with these names. Names that do not exist are left out."""
    (rows,) = tx.read(("secrets_by_name", {"names": sorted(set(names))}))
    return [_read_sealed(row) for row in rows]


def of_lease(tx: Tx, ref: LeaseRef) -> tuple[list[LeaseSecret], Refusal | None]:
    """The secrets that the proxy and the job's payload of a live lease name. If it is not live: none, and why."""
    lease = {"profile_id": ref.profile_id, "token": ref.token}
    now, (rows, jobs) = tx.clock(("secrets_of_lease", lease), ("job_of_lease", lease))
    why = refused(tx, None, ref, now)
    if why is not None:
        return [], why
    found = {sealed.name: sealed for sealed in map(_read_sealed, rows)}
    named = payload_secrets(read_job(jobs[0]).payload) if jobs else set()
    found |= {sealed.name: sealed for sealed in (sealed_by_name(tx, list(named)) if named else [])}
    return [LeaseSecret(name=name, sealed=sealed) for name, sealed in found.items()], None
