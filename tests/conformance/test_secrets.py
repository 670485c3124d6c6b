"""Stored secrets: ciphertext only, counted by version, handed out to whoever holds a live lease of a proxy's user."""

import asyncio

import pytest

from leasekeeper.core.leases import LeaseRef
from leasekeeper.core.secrets import SealedSecret, Secret
from leasekeeper.errors import Conflict, InputError, LeaseLost, NotFound, VersionConflict
from leasekeeper.ports import Grant
from tests.conformance.world import NewWorld, World, profile, proxy

FLEET = (
    profile("p1", proxy_id="exit_us"),
    profile("p2", proxy_id="exit_eu"),
    profile("p3"),
    proxy("exit_us", credentials="secret:us"),
    proxy("exit_eu", credentials="env:EU"),
)


def handed(secrets: list[SealedSecret]) -> dict[str, str]:
    return {secret.name: secret.sealed for secret in secrets}


async def of_lease(world: World, grant: Grant) -> dict[str, str]:
    found = await world.store.lease_secrets(grant.lease.ref)
    assert all(secret.value is None for secret in found)
    return {secret.name: secret.sealed.sealed for secret in found if secret.sealed is not None}


async def test_a_secret_is_kept_as_it_was_sealed(new_world: NewWorld) -> None:
    async with new_world() as world:
        made = await world.secret("us", "bm9uc2Vuc2U=")
        assert made == Secret(name="us", key_id="k1", created_at=world.now, updated_at=world.now, updated_by="ann")
        assert await world.store.get(Secret, "us") == made
        assert await world.store.sealed_secrets(["us", "nobody", "us"]) == [
            SealedSecret(name="us", key_id="k1", sealed="bm9uc2Vuc2U=")
        ]
        assert await world.store.sealed_secrets([]) == []


async def test_a_new_value_replaces_the_old_one_and_counts(new_world: NewWorld) -> None:
    async with new_world() as world:
        made = await world.secret("us", "AAAA")
        world.advance(60)
        again = await world.secret("us", "BBBB", "k2")
        assert (again.version, again.key_id, again.created_at, again.updated_at) == (
            2,
            "k2",
            made.created_at,
            world.now,
        )
        assert handed(await world.store.sealed_secrets(["us"])) == {"us": "BBBB"}


async def test_what_was_read_at_an_older_version_replaces_nothing(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.secret("us", "AAAA")
        assert (await world.secret("us", "BBBB", replaces=1)).version == 2
        for name, version in (("us", 1), ("nobody", 1)):
            with pytest.raises(VersionConflict):
                await world.secret(name, "CCCC", replaces=version)
        assert handed(await world.store.sealed_secrets(["us", "nobody"])) == {"us": "BBBB"}


async def test_those_who_store_a_name_at_once_make_different_versions(new_world: NewWorld) -> None:
    async with new_world() as world:
        stores = [world.store, await world.another(), await world.another()]
        made = await asyncio.gather(
            *(store.put_secret(SealedSecret(name="us", key_id="k", sealed="A"), actor="ann") for store in stores)
        )
        assert sorted(secret.version for secret in made) == [1, 2, 3]


async def test_events_name_the_secret_and_nothing_of_its_value(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.secret("us", "AAAABBBB")
        await world.secret("us", "AAAABBBB", "k2", replaces=1)
        await world.store.remove_secret("us", actor="ann", note="not used")
        stored = [event.data for event in await world.events(type="secret_stored")]
        assert stored == [
            {"name": "us", "key_id": "k1", "version": 1, "rotated": False},
            {"name": "us", "key_id": "k2", "version": 2, "rotated": True},
        ]
        (removed,) = await world.events(type="secret_removed")
        assert (removed.actor, removed.data) == ("ann", {"name": "us", "note": "not used"})
        assert not [event for event in await world.events() if "AAAABBBB" in repr(event)]


async def test_a_secret_that_a_proxy_names_is_not_removed(new_world: NewWorld) -> None:
    async with new_world(*FLEET) as world:
        await world.secret("us")
        with pytest.raises(Conflict, match="exit_us"):
            await world.store.remove_secret("us", actor="ann", note="tidy")
        await world.declare(*FLEET[:3], proxy("exit_us", credentials="env:US"), FLEET[4])
        await world.store.remove_secret("us", actor="ann", note="tidy")
        assert await world.all(Secret) == []
        with pytest.raises(NotFound):
            await world.store.remove_secret("us", actor="ann", note="tidy")


@pytest.mark.parametrize("name", ["", ".x", "a b", "a/b", "x" * 129, "ä"])
async def test_a_name_that_is_no_id_is_refused(new_world: NewWorld, name: str) -> None:
    async with new_world() as world:
        with pytest.raises(InputError):
            await world.secret(name)


async def test_a_removal_says_who_and_why(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.secret("us")
        for actor, note in (("", "tidy"), ("ann", " ")):
            with pytest.raises(InputError):
                await world.store.remove_secret("us", actor=actor, note=note)


async def test_a_live_lease_gets_the_secrets_of_its_own_proxy_only(new_world: NewWorld) -> None:
    async with new_world(*FLEET) as world:
        await world.secret("us", "AAAA")
        await world.secret("other", "BBBB")
        assert await of_lease(world, await world.acquire("p1")) == {"us": "AAAA"}
        assert await of_lease(world, await world.acquire("p2")) == {}
        assert await of_lease(world, await world.acquire("p3")) == {}


async def test_a_live_lease_gets_the_secrets_that_its_jobs_payload_names(new_world: NewWorld) -> None:
    """Those whose name says that they are for jobs: `us` is a proxy's, and whoever may submit must not get it."""
    async with new_world(*FLEET) as world:
        for name in ("us", "job-shop", "job-code", "job-other"):
            await world.secret(name, name.encode().hex())
        payload = {
            "login": "secret:job-shop",
            "steps": [{"code": "secret:job-code"}],
            "x": "secret:us",
            "y": "job-other",
        }
        names = {"job-shop", "job-code"}
        plain = await world.run("p3", payload={**payload, "z": "secret:job-nobody"})
        assert set(await of_lease(world, plain)) == names
        behind = await world.run("p1", payload=payload)
        assert await of_lease(world, behind) == {name: name.encode().hex() for name in {*names, "us"}}
        await world.finish(plain)
        with pytest.raises(LeaseLost):
            await of_lease(world, plain)
        assert await of_lease(world, await world.run("p3")) == {}


async def test_a_secret_that_is_not_there_is_not_handed_out(new_world: NewWorld) -> None:
    async with new_world(*FLEET) as world:
        assert await of_lease(world, await world.acquire("p1")) == {}


async def test_a_lease_that_is_over_gets_none(new_world: NewWorld) -> None:
    async with new_world(*FLEET) as world:
        await world.secret("us", "AAAA")
        done = await world.acquire("p1")
        await world.finish(done)
        with pytest.raises(LeaseLost):
            await of_lease(world, done)
        late = await world.acquire("p1")
        world.clock.now = late.lease.expires_at
        with pytest.raises(LeaseLost):
            await of_lease(world, late)
        await world.lose(late)
        with pytest.raises(LeaseLost):
            await of_lease(world, late)


async def test_a_lease_that_was_revoked_gets_none(new_world: NewWorld) -> None:
    async with new_world(*FLEET) as world:
        await world.secret("us", "AAAA")
        taken = await world.acquire("p1")
        await world.revoke(taken)
        with pytest.raises(LeaseLost):
            await of_lease(world, taken)


@pytest.mark.parametrize("wrong", ["token", "run_id", "lease_id", "routing_key"])
async def test_only_the_whole_proof_of_a_lease_counts(new_world: NewWorld, wrong: str) -> None:
    async with new_world(*FLEET) as world:
        await world.secret("us", "AAAA")
        ref = (await world.acquire("p1")).lease.ref
        other = {"token": ref.token + 1}.get(wrong, "p1:999")
        fields = {name: getattr(ref, name) for name in LeaseRef.__slots__}
        with pytest.raises(LeaseLost):
            await world.store.lease_secrets(LeaseRef(**{**fields, wrong: other}))
