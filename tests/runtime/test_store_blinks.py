"""The store is away for a moment: a holder whose own time is not up tries again, and nothing is done twice."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasekeeper import connect
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.profiles import ProfileState
from leasekeeper.errors import Conflict, InputError, StoreError, StoreNotWritable, StoreUnavailable
from tests.runtime.stage import furnish, state_of

URL = "https://bob:s3cret@shop.test/?token=s3cret"


def blinking(monkeypatch: pytest.MonkeyPatch, store: Any, name: str, error: StoreError, *, done: bool) -> list[str]:
    """The operation fails once; `done`: only its answer was lost."""
    real: Callable[..., Awaitable[Any]] = getattr(store, name)
    calls: list[str] = []

    async def blink(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        if len(calls) > 1:
            return await real(*args, **kwargs)
        if done:
            await real(*args, **kwargs)
        raise error

    monkeypatch.setattr(store, name, blink)
    return calls


@pytest.mark.parametrize("done", [True, False])
async def test_writes_under_a_lease_are_tried_again(
    store_url: str, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    away = StoreUnavailable("cut")
    async with connect(store_url, renew_every=0.2) as client:
        await furnish(client)
        names = ("checkpoint", "enter_section", "leave_section")
        calls = [blinking(monkeypatch, client.store, name, away, done=done) for name in names]
        async with client.lease("p1") as lease:
            await lease.checkpoint("there")
            async with lease.mutating("order"):
                assert (await client.get(Lease, lease.lease.lease_id)).open_section == "order"
            assert (await client.get(Lease, lease.lease.lease_id)).open_section is None
        assert [len(of_one) for of_one in calls] == [2, 2, 2]
        assert await state_of(client) is ProfileState.AVAILABLE


async def test_a_section_that_is_entered_twice_is_refused_as_ever(store_url: str) -> None:
    async with connect(store_url) as client:
        await furnish(client)
        async with client.lease("p1") as lease, lease.mutating("order"):
            with pytest.raises(Conflict):
                async with lease.mutating("order"):
                    pass


@pytest.mark.parametrize("error", [StoreUnavailable("cut"), StoreNotWritable("full"), StoreError("collided")])
async def test_an_ending_is_handed_in_until_it_is_taken(
    store_url: str, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    async with connect(store_url, renew_every=0.2) as client:
        await furnish(client)
        calls = blinking(monkeypatch, client.store, "settle", error, done=False)
        async with client.lease("p1"):
            pass
        assert len(calls) == 2
        assert await state_of(client) is ProfileState.AVAILABLE


async def test_a_release_that_is_not_acceptable_leaves_the_lease_to_be_ended(store_url: str) -> None:
    async with connect(store_url) as client:
        await furnish(client)
        async with client.lease("p1") as lease:
            with pytest.raises(InputError):
                await lease.release(output={"when": object()})
            lease.check()
            await lease.checkpoint("still here")
        assert await state_of(client) is ProfileState.AVAILABLE


async def test_what_a_program_says_of_its_run_is_kept_without_secrets(store_url: str) -> None:
    async with connect(store_url) as client:
        await furnish(client)
        async with client.lease("p1") as lease:
            await lease.checkpoint("there", url=URL)
            lease.closed(final_url=URL)
            await lease.release("LOGIN_REQUIRED", f"at {URL}")
        run = await client.get(RunRecord, lease.lease.run_id)
        kept = await client.get(Lease, lease.lease.lease_id)
        assert (run.final_url or "").startswith("https://")
        for text in (run.message, run.final_url or "", kept.last_url or ""):
            assert "shop.test" in text
            assert "s3cret" not in text
