"""The part of the Store port about API tokens, secrets, reserved API calls and free profiles, on any SQL engine. See
ports.Store."""

from collections.abc import Sequence
from datetime import timedelta

from leasekeeper.core.free_profiles import FreeProfiles, ProfileChoice
from leasekeeper.core.leases import LeaseRef
from leasekeeper.core.secrets import LeaseSecret, SealedSecret, Secret, check_name
from leasekeeper.core.tokens import ApiToken, NewToken, StoredToken, check_new
from leasekeeper.errors import InputError, Problem
from leasekeeper.stores.sql import free_profiles, heartbeats, pacing, secrets, tokens
from leasekeeper.stores.sql.checks import check_batch, check_limit
from leasekeeper.stores.sql.codec import clean
from leasekeeper.stores.sql.repeated_calls import RepeatableOperations


class AccessOperations(RepeatableOperations):
    """Tokens, secrets, reserved API calls and free profiles. A part of `SqlStore`."""

    async def free_profiles(
        self, choice: ProfileChoice, *, after: str | None = None, limit: int = 100, counted: bool = False
    ) -> FreeProfiles:
        check_limit(limit)
        if counted:
            return await self._engine.view(lambda tx: free_profiles.count(tx, choice))
        return await self._engine.view(lambda tx: free_profiles.find(tx, choice, after, limit))

    async def create_token(self, new: NewToken, *, actor: str) -> ApiToken:
        check_new(new)
        return await self._change(lambda tx: tokens.create(tx, self._ctx, new, check_actor(actor)))

    async def stored_token(self, token_id: str) -> StoredToken | None:
        return await self._engine.view(lambda tx: tokens.stored(tx, token_id))

    async def note_token_uses(self, token_ids: Sequence[str]) -> None:
        check_batch(token_ids, "token_ids")
        if token_ids:
            await self._engine.change(lambda tx: tokens.note_uses(tx, token_ids))

    async def reserve_call(self, key: str, spacing: timedelta, *, pause: timedelta = timedelta()) -> timedelta:
        if not key or spacing < timedelta() or pause < timedelta():
            raise InputError("nothing was reserved", [Problem("key", "needs a name, and spans that are not negative")])
        return await self._change(lambda tx: pacing.reserve_call(tx, key, spacing, pause))

    async def put_secret(self, sealed: SealedSecret, *, actor: str, replaces: int | None = None) -> Secret:
        check_name(sealed.name)
        return await self._change(lambda tx: secrets.put(tx, self._ctx, sealed, check_actor(actor), replaces))

    async def remove_secret(self, name: str, *, actor: str, note: str) -> None:
        if not note.strip():
            raise InputError("nothing was removed", [Problem("note", "must say why")])
        await self._change(lambda tx: secrets.remove(tx, self._ctx, name, check_actor(actor), clean(note)))

    async def sealed_secrets(self, names: Sequence[str]) -> list[SealedSecret]:
        check_batch(names, "names")
        return await self._engine.view(lambda tx: secrets.sealed_by_name(tx, names)) if names else []

    async def lease_secrets(self, ref: LeaseRef) -> list[LeaseSecret]:
        found, why = await self._engine.view(lambda tx: secrets.of_lease(tx, ref))
        heartbeats.lost(ref, why)
        return found


def check_actor(actor: str) -> str:
    """The actor, as text that can be stored. Raises InputError if it is empty."""
    if not actor.strip():
        raise InputError("nothing was done", [Problem("actor", "must say who does it")])
    return clean(actor)
