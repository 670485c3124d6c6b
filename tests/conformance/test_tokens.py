"""Tokens in the store: created with a hash, looked up by id, used, revoked by a person."""

from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.tokens import ApiToken, NewToken, Scope
from leasekeeper.errors import Conflict, IllegalTransition, InputError, NotFound
from tests.conformance.world import NewWorld, World

HASH = "c0ffee" * 10
ID = "a" * 12


def new(token_id: str = ID, **fields: Any) -> NewToken:
    return NewToken(**{"token_id": token_id, "name": "ci", "scopes": (Scope.READ,), "hash": HASH, **fields})


async def revoke(world: World, token_id: str) -> str:
    return (await world.decide(Target.TOKEN, token_id, Action.REVOKE)).state


async def test_a_token_is_kept_with_all_that_it_allows(new_world: NewWorld) -> None:
    async with new_world() as world:
        wanted = new(
            scopes=(Scope.SUBMIT, Scope.WORK),
            accounts=("shop", "shöp"),
            pools=("eu",),
            expires_after=timedelta(days=90),
        )
        made = await world.store.create_token(wanted, actor="ann")
        assert made == ApiToken(
            token_id=ID,
            name="ci",
            scopes=(Scope.SUBMIT, Scope.WORK),
            accounts=("shop", "shöp"),
            pools=("eu",),
            created_at=world.now,
            created_by="ann",
            expires_at=world.now + timedelta(days=90),
        )
        assert await world.store.get(ApiToken, made.token_id) == made
        assert all(isinstance(scope, Scope) for scope in (await world.store.get(ApiToken, made.token_id)).scopes)


async def test_whoever_authenticates_gets_token_hash_and_time_in_one_read(new_world: NewWorld) -> None:
    async with new_world() as world:
        made = await world.store.create_token(new(), actor="ann")
        world.advance(5)
        found = await world.store.stored_token(made.token_id)
        assert found is not None
        assert (found.token, found.hash, found.now) == (made, HASH, world.now)
        assert await world.store.stored_token("nobody") is None


async def test_an_id_is_used_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.store.create_token(new(), actor="ann")
        with pytest.raises(Conflict):
            await world.store.create_token(new(name="other"), actor="ann")
        assert [token.name for token in await world.all(ApiToken)] == ["ci"]


async def test_tokens_are_listed_newest_first(new_world: NewWorld) -> None:
    async with new_world() as world:
        for n in (3, 1, 2):
            await world.store.create_token(new(f"{n}" * 12, name=f"n{n % 2}"), actor="ann")
            world.advance(1)
        assert [token.token_id[0] for token in await world.paged(ApiToken, 1, {})] == ["2", "1", "3"]
        assert [token.token_id[0] for token in await world.all(ApiToken, name="n1")] == ["1", "3"]


async def test_a_person_revokes_a_token_once_and_for_good(new_world: NewWorld) -> None:
    async with new_world() as world:
        made = await world.store.create_token(new(), actor="ann")
        world.advance(60)
        assert await revoke(world, made.token_id) == "revoked"
        assert (await world.store.get(ApiToken, made.token_id)).revoked_at == world.now
        with pytest.raises(IllegalTransition):
            await revoke(world, made.token_id)
        with pytest.raises(NotFound):
            await revoke(world, "nobody")


async def test_both_are_on_record_without_the_hash(new_world: NewWorld) -> None:
    async with new_world() as world:
        made = await world.store.create_token(new(), actor="ann")
        await revoke(world, made.token_id)
        (created,) = await world.events(type="token_created")
        (revoked,) = await world.events(type="token_revoked")
        about = {"token_id": made.token_id, "name": "ci", "scopes": "read"}
        assert (created.actor, created.data) == ("ann", about)
        assert (revoked.actor, revoked.data) == ("ann", {**about, "note": "looked at it"})
        assert not [event for event in await world.events() if HASH in repr(event)]


async def test_the_last_use_is_noted_for_many_at_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        for n in (1, 2, 3):
            await world.store.create_token(new(f"{n}" * 12), actor="ann")
        world.advance(60)
        await world.store.note_token_uses(["1" * 12, "3" * 12, "1" * 12, "nobody"])
        await world.store.note_token_uses([])
        used = {token.token_id[0]: token.used_at for token in await world.all(ApiToken)}
        assert used == {"1": world.now, "2": None, "3": world.now}


async def test_a_clock_that_went_back_takes_no_use_back(new_world: NewWorld) -> None:
    async with new_world() as world:
        made = await world.store.create_token(new(), actor="ann")
        await world.store.note_token_uses([made.token_id])
        used_at = world.now
        world.advance(-3_600)
        await world.store.note_token_uses([made.token_id])
        assert (await world.store.get(ApiToken, made.token_id)).used_at == used_at


@pytest.mark.parametrize("wrong", [{"name": ""}, {"scopes": ()}, {"expires_after": timedelta(0)}])
async def test_what_makes_no_sense_is_refused(new_world: NewWorld, wrong: dict[str, Any]) -> None:
    async with new_world() as world:
        with pytest.raises(InputError):
            await world.store.create_token(new(**wrong), actor="ann")
        with pytest.raises(InputError):
            await world.store.create_token(new(), actor=" ")
        assert await world.all(ApiToken) == []
