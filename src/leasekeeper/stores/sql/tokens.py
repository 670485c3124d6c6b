"""API tokens in the tables: created with their hash, read by id, revoked by people."""

from collections.abc import Sequence

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.decisions import Decision
from leasekeeper.core.events import EventType
from leasekeeper.core.tokens import ApiToken, NewToken, StoredToken, revoked
from leasekeeper.errors import Conflict, NotFound
from leasekeeper.ports import Decided
from leasekeeper.stores.sql.codec import clean, decoder, encoder, to_us
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.log import Log

_read_token = decoder(ApiToken)
_write_token = encoder(ApiToken)
_revoked_row = encoder(ApiToken, ("token_id", "revoked_at"))


def create(tx: Tx, ctx: Context, new: NewToken, actor: str) -> ApiToken:
    """Store a new token. Its expiry counts from the store's time."""
    now, (rows,) = tx.clock(("lock_tokens", {"ids": [new.token_id]}))
    if rows:
        raise Conflict(
            f"there is a token {new.token_id} already; no token was created", cause=ConflictReason.TOKEN_EXISTS
        )
    token = ApiToken(
        token_id=new.token_id,
        name=clean(new.name),
        scopes=new.scopes,
        accounts=new.accounts,
        pools=new.pools,
        created_at=now,
        created_by=actor,
        expires_at=None if new.expires_after is None else now + new.expires_after,
    )
    tx.write("insert_tokens", [{**_write_token(token), "hash": new.hash}])
    log = Log(ctx, now)
    _log_token(log, EventType.TOKEN_CREATED, token, actor)
    log.save(tx)
    return token


def stored(tx: Tx, token_id: str) -> StoredToken | None:
    """One token with its hash and the store's time, in one read. None if there is none."""
    now, (rows,) = tx.clock(("token_by_id", {"token_id": token_id}))
    return StoredToken(token=_read_token(rows[0]), hash=rows[0]["hash"], now=now) if rows else None


def note_uses(tx: Tx, token_ids: Sequence[str]) -> None:
    """Write that these tokens were used now. Unknown ids are ignored."""
    now, (rows,) = tx.clock(("lock_tokens", {"ids": sorted(set(token_ids))}))
    used = [row["token_id"] for row in rows if row["used_at"] is None or row["used_at"] < to_us(now)]
    if used:
        tx.write("use_tokens", [{"token_id": token_id, "used_at": to_us(now)} for token_id in used])


def revoke(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Revoke a token for good, as a person decided."""
    now, (rows,) = tx.clock(("lock_tokens", {"ids": [decision.id]}))
    if not rows:
        raise NotFound(f"there is no token {decision.id}", what="token", id=decision.id)
    token = revoked(_read_token(rows[0]), now)
    tx.write("revoke_tokens", [_revoked_row(token)])
    log = Log(ctx, now)
    _log_token(log, EventType.TOKEN_REVOKED, token, decision.actor, note=decision.note)
    log.save(tx)
    return Decided(state="revoked", version=0)


def _log_token(log: Log, kind: EventType, token: ApiToken, actor: str, note: str | None = None) -> None:
    data: dict[str, object] = {"token_id": token.token_id, "name": token.name, "scopes": " ".join(token.scopes)}
    log.event(kind, actor=actor, data=data if note is None else {**data, "note": note})
