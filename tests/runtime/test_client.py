"""Leasing from a program: renewal by itself, endings by outcome, and what happens when the lease is lost."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from leasekeeper import Event, Fail, Job, LeaseLost, Note, ProfileBusy, RunRecord, connect, why_text
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.leases import Lease
from leasekeeper.core.notes import MAX_CHARACTERS
from leasekeeper.core.profiles import ProfileState
from leasekeeper.core.settle import Ending
from leasekeeper.errors import Conflict, InputError, StoreUnavailable
from leasekeeper.evidence.redact import MAX_MESSAGE
from leasekeeper.ports import Settled
from tests.runtime.stage import CALM, TIMES, furnish, state_of, until


async def test_a_program_submits_reads_and_asks_why(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        submitted = await client.submit("visit", profile="p1", payload={"day": 1}, priority=5)
        same = await client.submit({"task": "visit", "profile_id": "p1", "idempotency_key": "k"})
        again = await client.submit("visit", profile="p1", idempotency_key="k")
        assert (submitted.job.priority, again.already_handled) == (5, True)
        assert again.job.job_id == same.job.job_id
        assert len((await client.find(Job, profile_id="p1")).items) == 2
        why = await client.why(job=submitted.job.job_id)
        assert "waits for a worker" in why_text(why).headline


async def test_a_job_cannot_be_given_twice_in_one_call(store_url: str) -> None:
    async with connect(store_url) as client:
        with pytest.raises(InputError, match="not both"):
            await client.submit({"task": "visit"}, profile="p1")


async def test_leaving_the_block_releases_the_profile_and_keeps_what_was_done(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        async with client.lease("p1") as lease:
            assert await state_of(client) is ProfileState.LEASED
            await lease.checkpoint("dashboard_open", url="https://site.test/")
            async with lease.mutating("export"):
                pass
            assert lease.token == 1
        assert await state_of(client) is ProfileState.AVAILABLE
        run = await client.get(RunRecord, lease.lease.run_id)
        assert (run.result, run.last_safe_step, run.purpose) == ("completed", "dashboard_open", "api")
        async with client.lease("p1") as second:
            assert second.token == 2


async def test_a_program_writes_notes_with_and_without_a_lease(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        await client.note("asks for a code", profile="p1", by="ann")
        async with client.lease("p1") as lease:
            await lease.note("token=abcdefgh12345678 was shown")
            await lease.note("x" * 5_000, about="account")
        assert await state_of(client) is ProfileState.AVAILABLE
        long, redacted, first = (await client.find(Note)).items
        assert (first.author, first.text, first.run_id) == ("ann", "asks for a code", None)
        assert (redacted.text, redacted.run_id) == ("token=[redacted] was shown", lease.lease.run_id)
        assert (len(long.text), long.text[-1], long.about) == (MAX_CHARACTERS, "…", "account")
        for named in ({}, {"profile": "p1", "account": "shop"}):
            with pytest.raises(InputError, match="one profile, or one account"):
                await client.note("x", **named)
        with pytest.raises(LeaseLost):
            await lease.note("too late")


async def test_a_refusal_names_the_next_step(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        async with client.lease("p1"):
            with pytest.raises(ProfileBusy) as busy:
                async with client.lease("p1", wait=0):
                    pass
        assert busy.value.__notes__ == ["ask `why` about profile p1: what happens next, and what you can decide"]


async def test_one_lease_cannot_be_entered_twice_at_once(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        lease = client.lease("p1", mode="shared")
        entered = await asyncio.gather(lease.__aenter__(), lease.__aenter__(), return_exceptions=True)
        assert [type(each) for each in entered] == [type(lease), Conflict]
        await lease.release()
        assert await state_of(client) is ProfileState.AVAILABLE


async def test_a_lease_that_was_not_got_may_be_tried_again(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        lease = client.lease("p1")
        async with client.lease("p1"):
            with pytest.raises(ProfileBusy):
                await lease.__aenter__()
        async with lease:
            assert await state_of(client) is ProfileState.LEASED


async def test_a_blocked_event_loop_does_not_lose_the_lease(store_url: str) -> None:
    async with connect(store_url, **TIMES) as client:
        await furnish(client)
        async with client.lease("p1") as lease:
            time.sleep(TIMES["lease_ttl"] + 0.5)  # noqa: ASYNC251 - on purpose # waits: till past the TTL
            lease.check()
        assert await state_of(client) is ProfileState.AVAILABLE


async def test_a_revoked_lease_is_noticed_and_can_write_nothing(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        with pytest.raises(LeaseLost):  # noqa: PT012 - the end of the block is what raises
            async with client.lease("p1") as lease:
                await client.store.decide(
                    Decision(target=Target.LEASE, id=lease.lease.lease_id, action=Action.REVOKE, note="n", actor="a")
                )
                assert "revoked" in await asyncio.wait_for(lease.lost(), 60)
                with pytest.raises(LeaseLost, match="Stop using profile p1"):
                    lease.check()
                with pytest.raises(LeaseLost):
                    await lease.checkpoint("too_late")
        assert await state_of(client) is ProfileState.LEASED, "its holder might not have known: not before the expiry"
        refused = await client.find(Event, type="stale_worker_write_rejected")
        assert {event.data["write"] for event in refused.items} >= {"renew", "settle"}


async def test_a_reason_that_the_program_names_decides(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        with pytest.raises(Fail):
            async with client.lease("p1"):
                raise Fail("LOGIN_REQUIRED", "the shop shows its form")
        assert await state_of(client) is ProfileState.REVIEW_REQUIRED


async def test_a_misspelt_reason_does_not_give_the_profile_to_others(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        with pytest.raises(Fail):
            async with client.lease("p1") as lease:
                raise Fail("LOGIN_REQUIERD", "the shop shows its form")
        assert await state_of(client) is ProfileState.REVIEW_REQUIRED
        run = await client.get(RunRecord, lease.lease.run_id)
        form = "the shop shows its form"
        assert run.message == f"{form} (there is no reason LOGIN_REQUIERD; did you mean LOGIN_REQUIRED?)"


@pytest.mark.parametrize(("reported", "state"), [(True, ProfileState.AVAILABLE), (False, ProfileState.STALE)])
async def test_an_exception_is_no_explanation_unless_the_browser_was_closed(
    store_url: str, reported: bool, state: ProfileState
) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - it must come out of the block
            async with client.lease("p1") as lease:
                await lease.checkpoint("open", url="https://site.test/")
                if reported:
                    lease.closed(final_url="https://site.test/bye")
                raise ZeroDivisionError
        assert await state_of(client) is state


@pytest.mark.parametrize("error", [NameError, KeyboardInterrupt, asyncio.CancelledError])
async def test_an_exception_before_the_profile_was_touched_leaves_it_available(
    store_url: str, error: type[BaseException]
) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        with pytest.raises(error):
            async with client.lease("p1") as lease:
                raise error
        assert await state_of(client) is ProfileState.AVAILABLE
        run = await client.get(RunRecord, lease.lease.run_id)
        assert (run.result, run.stop_reason, run.message) == ("failed", "TASK_ERROR", error.__name__)


async def test_an_exception_after_the_directory_was_given_out_is_no_explanation(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with connect(sqlite_url, data_dir=str(tmp_path), **CALM) as client:
        await furnish(client)
        with pytest.raises(NameError):  # noqa: PT012 - it must come out of the block
            async with client.lease("p1") as lease:
                await lease.user_data_dir()
                raise NameError
        assert await state_of(client) is ProfileState.QUARANTINED


async def test_an_exception_after_launch_options_were_refused_leaves_it_available(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with connect(sqlite_url, data_dir=str(tmp_path), **CALM) as client:
        await furnish(client)
        with pytest.raises(InputError, match="user-data-dir"):
            async with client.lease("p1") as lease:
                await lease.launch_options(args=["--user-data-dir=elsewhere"])
        assert await state_of(client) is ProfileState.AVAILABLE


async def test_an_exception_inside_a_mutating_section_quarantines(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - it must come out of the block
            async with client.lease("p1") as lease:
                lease.closed(final_url="https://site.test/bye")
                async with lease.mutating("submit_order"):
                    raise ZeroDivisionError
        why = await client.why(profile="p1")
        assert await state_of(client) is ProfileState.QUARANTINED
        assert any("submit_order" in text for _, text in why_text(why).facts)


async def test_a_taken_profile_says_who_holds_it(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        async with client.lease("p1", worker_id="night-shift"):
            with pytest.raises(ProfileBusy, match="night-shift") as refusal:
                await client.lease("p1").__aenter__()
        assert refusal.value.reason == "blocked_by_profile_lease"


async def test_waiting_gets_the_profile_when_it_is_released(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        first = client.lease("p1")
        await first.__aenter__()
        second = client.lease("p1", wait=timedelta(seconds=60))
        waiting = asyncio.create_task(second.__aenter__())
        await first.release()
        await waiting
        assert second.token == 2
        await second.release()


async def test_a_lease_is_released_once(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        lease = client.lease("p1")
        with pytest.raises(Conflict, match="not leased"):
            await lease.release()
        async with lease:
            await lease.release(output={"orders": 3})
        assert (await client.get(RunRecord, lease.lease.run_id)).output == {"orders": 3}


async def test_a_request_that_is_cancelled_leaves_no_lease_behind(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        for _ in range(5):
            asking = asyncio.create_task(client.lease("p1").__aenter__())
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

        async def free() -> bool:
            leases = await client.find(Lease, live="1")
            return not leases.items and await state_of(client) is ProfileState.AVAILABLE

        assert await until(free)


async def test_a_released_lease_says_no(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        lease = client.lease("p1")
        async with lease:
            await lease.release()
            with pytest.raises(LeaseLost, match="released"):
                lease.check()
        with pytest.raises(Conflict, match="another one"):
            await lease.__aenter__()


async def test_an_ending_is_handed_in_again_while_the_store_is_away(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        settle, failures = client.store.settle, iter([StoreUnavailable("away"), StoreUnavailable("still away")])

        async def sometimes(endings: Sequence[Ending]) -> list[Settled]:
            for failure in failures:
                raise failure
            return await settle(endings)

        monkeypatch.setattr(client.store, "settle", sometimes)
        async with client.lease("p1") as lease:
            pass
        assert lease.settled is not None
        assert lease.settled.profile_state == ProfileState.AVAILABLE


async def test_a_relative_store_is_the_same_one_wherever_the_program_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with connect("sqlite:///here.db", **CALM) as client:
        monkeypatch.chdir(tmp_path / "elsewhere")
        await furnish(client)
        async with client.lease("p1") as lease:
            before = lease.lease.heartbeat_at

            async def renewed() -> bool:
                return (await client.get(Lease, lease.lease.lease_id)).heartbeat_at > before

            assert await until(renewed)
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_person_may_open_a_profile_whose_account_is_paused(store_url: str) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        await client.store.decide(Decision(target=Target.ACCOUNT, id="shop", action=Action.PAUSE, note="n", actor="a"))
        with pytest.raises(ProfileBusy, match="blocked_by_account_pause"):
            await client.lease("p1").__aenter__()
        async with client.lease("p1", purpose="manual") as lease:
            assert lease.token == 1


async def test_what_is_said_at_the_end_is_kept_as_far_as_it_is_worth(sqlite_url: str) -> None:
    async with connect(sqlite_url, **CALM) as client:
        await furnish(client)
        async with client.lease("p1") as lease:
            await lease.release("LOGIN_REQUIRED", "it says: " + "so " * 100_000)
        assert len((await client.get(RunRecord, lease.lease.run_id)).message) == MAX_MESSAGE
