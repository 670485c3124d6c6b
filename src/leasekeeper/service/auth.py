"""Who calls, and whether they may: everything that authenticates goes through `Authenticator`.

The text of a token, what the call needs and what it is about go in; the token's record comes out, or an error with a
code. No message repeats a token's text. The time is the store's.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from leasekeeper.core.tokens import (
    SECRET_BYTES,
    USE_NOTED_EVERY,
    ApiToken,
    Needs,
    NewToken,
    Scope,
    StoredToken,
    denial,
    hash_of,
    invalid,
    proves,
    token_id_from,
    token_id_of,
    token_text,
)
from leasekeeper.errors import LeasekeeperError, NotAuthenticated
from leasekeeper.ports import MAX_IN_BATCH, Store

_LOG = logging.getLogger(__name__)

# How long a token's record is cached: a revoked token is refused everywhere after this time at the latest.
KNOWN_SECONDS: Final = 1.0
MAX_KNOWN: Final = 10_000
_NO_HASH: Final = hash_of("")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedToken:
    """A new token and its text, which is shown once and stored nowhere."""

    token: ApiToken
    text: str = field(repr=False)


async def create_token(
    store: Store,
    name: str,
    scopes: Sequence[Scope],
    *,
    actor: str,
    accounts: Sequence[str] = (),
    pools: Sequence[str] = (),
    expires_after: timedelta | None = None,
) -> CreatedToken:
    """Create a token. Only the hash of its text goes to the store."""
    token_id = token_id_from(secrets.token_bytes(16))
    text = token_text(token_id, secrets.token_bytes(SECRET_BYTES))
    new = NewToken(
        token_id=token_id,
        name=name,
        scopes=tuple(scope for scope in Scope if scope in scopes),
        accounts=tuple(dict.fromkeys(accounts)),
        pools=tuple(dict.fromkeys(pools)),
        expires_after=expires_after,
        hash=hash_of(text),
    )
    return CreatedToken(token=await store.create_token(new, actor=actor), text=text)


def bearer(header: str | None) -> str:
    """The token's text in an `Authorization` header. Raises NotAuthenticated."""
    scheme, _, text = (header or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        raise NotAuthenticated("the call has no token: send the header 'Authorization: Bearer lk_…'")
    return text.strip()


class Authenticator:
    """Checks tokens against one store. One per process: it caches the records that it read a moment ago."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[float, StoredToken]] = {}
        self._noted: dict[str, float] = {}
        self._uses: set[str] = set()
        self._noting: asyncio.Task[None] | None = None
        self.local: StoredToken | None = None
        """A token that is in no store: see `local_access`."""

    async def identify(self, text: str) -> ApiToken:
        """Whose token this is. Raises NotAuthenticated (UNAUTHENTICATED, TOKEN_EXPIRED, TOKEN_REVOKED)."""
        token_id = token_id_of(text)
        if token_id is None:
            raise NotAuthenticated("that is no token: it was mistyped or cut off; a token begins with lk_")
        local = self.local
        if local is not None and local.token.token_id == token_id and proves(text, local.hash):
            return local.token
        read_at, stored = await self._stored(token_id)
        if not proves(text, stored.hash if stored else _NO_HASH) or stored is None:
            raise NotAuthenticated(f"token {token_id} is unknown or wrong", token_id=token_id)
        token = stored.token
        wrong = invalid(token, _now(stored, read_at))
        if wrong is not None:
            raise wrong
        self._note_use(stored)
        return token

    async def check_active(self, token_id: str) -> None:
        """Raise NotAuthenticated if this token was revoked or has expired. An id that is not in the store is of a local
        token.
        """
        if self.local is not None and self.local.token.token_id == token_id:
            return
        read_at, stored = await self._stored(token_id)
        wrong = None if stored is None else invalid(stored.token, _now(stored, read_at))
        if wrong is not None:
            raise wrong

    def knows(self, text: str) -> bool:
        """Whether this token was valid when it was last read. Reads nothing."""
        token_id = token_id_of(text)
        if token_id is None:
            return False
        local = self.local
        if local is not None and local.token.token_id == token_id:
            return proves(text, local.hash)
        known = self._known.get(token_id)
        return known is not None and invalid(known[1].token, known[1].now) is None and proves(text, known[1].hash)

    async def authorize(
        self,
        text: str,
        needs: Needs,
        *,
        account: str | None = None,
        pool: str | None = None,
        incarnation: str | None = None,
    ) -> ApiToken:
        """Whose token this is, if it allows the call. Raises NotAuthenticated or Forbidden.

        `account` and `pool` are those that the call is about, None: all of them; `incarnation` is the holder of the
        lease that it is about.
        """
        token = await self.identify(text)
        denied = denial(token, needs, account=account, pool=pool, incarnation=incarnation)
        if denied is not None:
            raise denied
        return token

    async def close(self) -> None:
        """Wait until pending uses are recorded."""
        if self._noting is not None:
            await asyncio.wait({self._noting})

    async def _stored(self, token_id: str) -> tuple[float, StoredToken | None]:
        known = self._known.get(token_id)
        now = time.monotonic()
        if known is not None and now < known[0] + KNOWN_SECONDS:
            return known
        stored = await self._store.stored_token(token_id)
        if stored is None:
            return now, None
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
            self._noted.clear()
        self._known[token_id] = (now, stored)
        return now, stored

    def _note_use(self, stored: StoredToken) -> None:
        """Record the use in the background, at most once a minute per token, many in one call."""
        token_id, every = stored.token.token_id, USE_NOTED_EVERY.total_seconds()
        used_at, now = stored.token.used_at, time.monotonic()
        if used_at is not None and stored.now - used_at < USE_NOTED_EVERY:
            return
        if now < self._noted.get(token_id, -every) + every:
            return
        self._noted[token_id] = now
        self._uses.add(token_id)
        if self._noting is None or self._noting.done():
            self._noting = asyncio.create_task(self._note_uses())

    async def _note_uses(self) -> None:
        while self._uses:
            uses = sorted(self._uses)[:MAX_IN_BATCH]
            self._uses.difference_update(uses)
            try:
                await self._store.note_token_uses(uses)
            except LeasekeeperError as error:
                _LOG.warning("last use of %d tokens was not recorded: %s", len(uses), error.message)


def _now(stored: StoredToken, read_at: float) -> datetime:
    """The store's time, from when the token was read."""
    return stored.now + timedelta(seconds=time.monotonic() - read_at)
