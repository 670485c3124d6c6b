"""The outbox: who is given which message, and what becomes of it. How messages travel is tested elsewhere."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.deliveries import (
    DELAYS,
    MAX_ATTEMPTS,
    SPREAD,
    VANISHED,
    Attempt,
    Delivery,
    DeliveryRequest,
    DeliveryState,
)
from leasekeeper.core.policy import Retention
from leasekeeper.errors import IllegalTransition, InputError, NotFound
from tests.conformance.world import RESERVED, NewWorld, World, answered, seconds

HOOK = "https://hook.test/done?key=hunter2"


def ids(deliveries: list[Delivery]) -> list[str]:
    return sorted(delivery.delivery_id for delivery in deliveries)


async def state_of(world: World, delivery: Delivery) -> DeliveryState:
    return (await world.store.get(Delivery, delivery.delivery_id)).state


async def reported(world: World, kind: str) -> list[str]:
    return [str(event.data["delivery_id"]) for event in await world.events(type=kind)]


async def replay(world: World, delivery: Delivery) -> str:
    return (await world.decide(Target.WEBHOOK, delivery.delivery_id, Action.REPLAY)).state


async def test_a_message_is_given_to_one_sender_at_a_time(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = await world.owe(HOOK)
        (taken,) = await world.take_deliveries()
        assert (taken.delivery_id, taken.attempts, taken.url, taken.body) == (owed.delivery_id, 1, HOOK, owed.body)
        assert taken == await world.store.get(Delivery, owed.delivery_id)
        world.advance(RESERVED - seconds(1))
        assert await world.take_deliveries() == []


async def test_a_message_is_part_of_the_trace_of_its_job(new_world: NewWorld) -> None:
    async with new_world() as world:
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        await world.owe(HOOK, traceparent=trace)
        (taken,) = await world.take_deliveries()
        assert taken.traceparent == trace


async def test_a_sender_that_vanished_leaves_it_to_the_others(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = await world.owe(HOOK)
        await world.take_deliveries()
        world.advance(RESERVED)
        (again,) = await world.take_deliveries()
        assert (again.delivery_id, again.attempts) == (owed.delivery_id, 2)


async def test_senders_that_ask_at_once_are_given_different_messages(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = [await world.owe(f"https://h{n % 3}.test/") for n in range(30)]
        stores = [world.store, await world.another(), await world.another()]
        given: list[str] = []
        for _ in range(30):
            pages = await asyncio.gather(
                *(store.take_deliveries(DeliveryRequest(limit=4, each=2), RESERVED) for store in stores)
            )
            given += [delivery.delivery_id for page in pages for delivery in page.items]
            if not any(page.items for page in pages):
                break
        assert sorted(given) == ids(owed)


async def test_what_was_accepted_is_delivered_and_on_record(new_world: NewWorld) -> None:
    async with new_world() as world:
        done = await world.send(HOOK, 204)
        assert (done.state, done.ended_at, done.answer) == (DeliveryState.DELIVERED, world.now, "HTTP 204")
        assert done == await world.store.get(Delivery, done.delivery_id)
        (event,) = await world.events(type="webhook_delivered")
        assert event.job_id == done.job_id
        assert event.data == {
            "delivery_id": done.delivery_id,
            "type": "job.cancelled",
            "host": "hook.test",
            "attempts": 1,
            "answer": "HTTP 204",
        }
        world.advance(timedelta(days=9))
        assert await world.take_deliveries() == []


async def test_what_failed_is_due_again_after_its_delay_until_it_is_exhausted(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = await world.owe(HOOK)
        for delay in DELAYS:
            (taken,) = await world.take_deliveries()
            (failed,) = await world.store.settle_deliveries([answered(taken, 503)])
            assert failed.state is DeliveryState.PENDING
            assert delay <= failed.due_at - world.now <= delay * (1 + SPREAD)
            world.clock.now = failed.due_at - seconds(1)
            assert await world.take_deliveries() == []
            world.clock.now = failed.due_at
        assert await reported(world, "webhook_exhausted") == []
        (last,) = await world.take_deliveries()
        (over,) = await world.store.settle_deliveries([answered(last, None)])
        assert (over.state, over.attempts, over.ended_at) == (DeliveryState.EXHAUSTED, MAX_ATTEMPTS, world.now)
        assert await reported(world, "webhook_exhausted") == [owed.delivery_id]
        world.advance(timedelta(days=30))
        assert await world.take_deliveries() == []


async def test_a_sender_that_comes_late_cannot_undo_what_another_did(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = await world.owe(HOOK)
        (late,) = await world.take_deliveries()
        world.advance(RESERVED)
        (taken,) = await world.take_deliveries()
        assert await world.store.settle_deliveries([answered(late, 410)]) == []
        assert (await world.store.get(Delivery, owed.delivery_id)).due_at == taken.due_at
        await world.store.settle_deliveries([answered(taken, 500)])
        (done,) = await world.store.settle_deliveries([answered(late, 200)])
        assert done.state is DeliveryState.DELIVERED
        assert await world.store.settle_deliveries([answered(taken, 500), answered(late, 200)][:1]) == []
        assert await reported(world, "webhook_delivered") == [owed.delivery_id]


async def test_an_answer_that_is_reported_twice_counts_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = await world.owe(HOOK)
        (taken,) = await world.take_deliveries()
        for expected in (1, 0):
            assert len(await world.store.settle_deliveries([answered(taken, 200)])) == expected
        assert await reported(world, "webhook_delivered") == [owed.delivery_id]


async def test_attempts_of_messages_that_are_not_there_change_nothing(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.owe(HOOK)
        before, events = await world.everything(), await world.events()
        assert await world.store.settle_deliveries([]) == []
        ghost = Attempt(delivery_id="nobody", number=1, status=200, answer="HTTP 200")
        assert await world.store.settle_deliveries([ghost]) == []
        assert (await world.everything(), await world.events()) == (before, events)


async def test_no_host_holds_up_the_others(new_world: NewWorld) -> None:
    async with new_world() as world:
        for _ in range(20):
            await world.owe("https://a-dead-one.test/")
        others = [await world.owe(f"https://live{n}.test/") for n in range(3)]
        taken = await world.take_deliveries(limit=5, each=2)
        assert set(ids(others)) < set(ids(taken))
        assert sorted(delivery.host for delivery in taken) == [
            "a-dead-one.test", "a-dead-one.test", "live0.test", "live1.test", "live2.test",
        ]  # fmt: skip
        assert await world.take_deliveries(limit=5, each=2, room={"a-dead-one.test": 0}) == []
        (one,) = await world.take_deliveries(limit=5, each=2, room={"a-dead-one.test": 1})
        assert one.host == "a-dead-one.test"


async def test_slow_hosts_share_some_places_and_those_with_nothing_due_take_none(new_world: NewWorld) -> None:
    async with new_world() as world:
        slow = [f"a{n}.test" for n in range(20)]
        for host in slow[15:]:
            await world.owe(f"https://{host}/")
            await world.owe(f"https://{host}/")
        quick = await world.owe("https://quick.test/")
        some: dict[str, Any] = {"room": dict.fromkeys(slow, 1), "slow": set(slow)}
        taken = await world.take_deliveries(slow_places=2, **some)
        assert sorted(delivery.host for delivery in taken) == ["a15.test", "a16.test", "quick.test"]
        assert quick.delivery_id in ids(taken)
        assert await world.take_deliveries(slow_places=0, **some) == []
        more = await world.take_deliveries(slow_places=9, **some)
        assert sorted(delivery.host for delivery in more) == slow[15:]


async def test_what_nobody_lives_to_tell_of_is_given_up_at_last(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = await world.owe(HOOK)
        for number in range(1, MAX_ATTEMPTS + 1):
            (taken,) = await world.take_deliveries()
            assert taken.attempts == number
            world.advance(RESERVED)
        assert await world.take_deliveries() == []
        over = await world.store.get(Delivery, owed.delivery_id)
        assert (over.state, over.answer, over.ended_at) == (DeliveryState.EXHAUSTED, VANISHED, world.now)
        assert await reported(world, "webhook_exhausted") == [owed.delivery_id]


async def test_a_late_success_counts_also_after_it_was_given_up(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = await world.owe(HOOK)
        (slow,) = await world.take_deliveries()
        world.advance(RESERVED)
        (gone,) = await world.take_deliveries()
        await world.store.settle_deliveries([answered(gone, 410)])
        assert await state_of(world, owed) is DeliveryState.EXHAUSTED
        await world.store.settle_deliveries([answered(slow, 200)])
        assert await state_of(world, owed) is DeliveryState.DELIVERED


async def test_of_two_answers_reported_at_once_the_acceptance_counts(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = [await world.owe(HOOK) for _ in range(2)]
        first = await world.take_deliveries()
        world.advance(RESERVED)
        second = await world.take_deliveries()
        good, bad = [answered(d, 200) for d in first], [answered(d, 503) for d in second]
        changed = await world.store.settle_deliveries([good[0], bad[0], bad[1], good[1]])
        assert [delivery.state for delivery in changed] == [DeliveryState.DELIVERED] * 2
        assert ids(changed) == ids(owed)


async def test_an_attempt_from_before_a_replay_cannot_fail_the_new_one(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = await world.owe(HOOK)
        (before,) = await world.take_deliveries()
        await replay(world, owed)
        assert await world.store.settle_deliveries([answered(before, 410)]) == []
        (after,) = await world.take_deliveries()
        assert await world.store.settle_deliveries([answered(before, 410)]) == []
        (done,) = await world.store.settle_deliveries([answered(after, 200)])
        assert done.state is DeliveryState.DELIVERED


async def test_a_clock_that_was_ahead_for_a_while_does_not_keep_messages_back(new_world: NewWorld) -> None:
    async with new_world() as world:
        ahead = timedelta(days=400)
        world.advance(ahead)
        owed, failed = await world.owe(HOOK), await world.send(HOOK, 500)
        by_hand = await world.owe(HOOK)
        world.advance(-ahead)
        assert await world.take_deliveries() == []
        await replay(world, by_hand)
        assert ids(await world.take_deliveries()) == ids([by_hand])
        await world.store.pause_expiry(seconds(60), -ahead)
        assert ids(await world.take_deliveries()) == ids([owed, failed])


async def test_delays_are_kept_when_the_clock_jumps(new_world: NewWorld) -> None:
    async with new_world() as world:
        failed = await world.send(HOOK, 500, retry_after=timedelta(days=9))
        await world.store.pause_expiry(seconds(60), seconds(-30))
        assert (await world.store.get(Delivery, failed.delivery_id)).due_at == failed.due_at


async def test_what_is_due_first_goes_first(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = []
        for n in (3, 1, 2):
            owed.append(await world.owe(f"https://h{n}.test/"))
            world.advance(1)
        for expected in owed:
            (taken,) = await world.take_deliveries(limit=1)
            assert taken.delivery_id == expected.delivery_id


async def test_more_hosts_than_one_read_takes_in_are_all_found(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasekeeper.stores.sql.sending.MAX_HOSTS", 3)
    async with new_world() as world:
        owed = [await world.owe(f"https://h{n}.test/") for n in range(8)]
        found: list[Delivery] = []
        after: str | None = ""
        while after is not None:
            page = await world.store.take_deliveries(DeliveryRequest(limit=100, each=1), RESERVED, after=after)
            found += page.items
            after = page.after
        assert ids(found) == ids(owed)


async def test_a_person_may_send_it_once_more_whatever_came_of_it(new_world: NewWorld) -> None:
    async with new_world() as world:
        delivered, exhausted = await world.send(HOOK, 200), await world.send(HOOK, 410)
        failed = await world.send(HOOK, 500)
        for delivery in (delivered, exhausted, failed):
            assert await replay(world, delivery) == "pending"
        again = await world.take_deliveries()
        assert ids(again) == ids([delivered, exhausted, failed])
        assert {delivery.tries for delivery in again} == {1}
        events = await world.events(type="webhook_replayed")
        assert [(event.actor, event.data["note"]) for event in events] == [("ann", "looked at it")] * 3


async def test_what_was_not_tried_yet_cannot_be_replayed(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = await world.owe(HOOK)
        with pytest.raises(IllegalTransition, match="not tried yet"):
            await replay(world, owed)
        with pytest.raises(NotFound, match="there is no webhook nobody"):
            await world.decide(Target.WEBHOOK, "nobody", Action.REPLAY)
        with pytest.raises(InputError, match="has no cancel"):
            await world.decide(Target.WEBHOOK, owed.delivery_id, Action.CANCEL)
        assert await state_of(world, owed) is DeliveryState.PENDING


async def test_what_ended_is_kept_as_long_as_jobs_and_what_is_owed_for_ever(new_world: NewWorld) -> None:
    async with new_world() as world:
        for status in (200, 410):
            await world.send(HOOK, status)
        failed = await world.send(HOOK, 500)
        day = Retention(jobs=timedelta(days=1), events=None)
        world.advance(timedelta(days=1))
        await world.store.prune(day)
        assert len(await world.all(Delivery)) == 3
        world.advance(seconds(1))
        await world.store.prune(day)
        assert ids(await world.all(Delivery)) == [failed.delivery_id]


async def test_the_counts_tell_what_was_not_delivered(new_world: NewWorld) -> None:
    async with new_world() as world:
        for status in (200, 410, 410, 500):
            await world.send(HOOK, status)
        stats = await world.store.stats()
        assert stats.webhooks == {"pending": 1, "exhausted": 2}
        (pending,) = await world.all(Delivery, state="pending")
        assert (stats.webhooks_due_at, stats.webhooks_tried_at) == (pending.due_at, pending.attempted_at)
        assert stats.now == world.now


async def test_no_event_holds_the_address_and_answers_that_cannot_be_kept_are_cleaned(new_world: NewWorld) -> None:
    async with new_world() as world:
        owed = await world.owe(HOOK)
        (taken,) = await world.take_deliveries()
        odd = Attempt(delivery_id=taken.delivery_id, number=1, status=410, answer="a\0b\ud83d")
        (over,) = await world.store.settle_deliveries([odd])
        assert over.answer == "a\ufffdb\ufffd"
        await replay(world, owed)
        assert all("hunter2" not in str(event) for event in await world.events())


async def test_why_says_of_the_webhooks_of_a_job(new_world: NewWorld) -> None:
    async with new_world() as world:
        sent = await world.send(HOOK, 410)
        facts = await world.store.why(job_id=sent.job_id)
        assert facts.webhooks == (sent,)
        assert facts.webhooks_tried_at is None
        failed = await world.send(HOOK, 500)
        assert (await world.store.why(job_id=failed.job_id)).webhooks_tried_at == world.now
        assert (await world.store.why(profile_id="p1")).webhooks == ()


@pytest.mark.parametrize("limit", [0, 1001])
async def test_nobody_takes_none_or_too_many(new_world: NewWorld, limit: int) -> None:
    async with new_world() as world:
        with pytest.raises(InputError, match="between 1 and 1000"):
            await world.store.take_deliveries(DeliveryRequest(limit=limit, each=1), RESERVED)


async def test_results_for_a_bridge_are_given_to_that_bridge_alone(new_world: NewWorld) -> None:
    async with new_world() as world:
        web = await world.owe(HOOK)
        ours = [await world.owe("bridge://jobs") for _ in range(3)]
        await world.owe("bridge://others")
        assert ids(await world.take_deliveries()) == [web.delivery_id]
        asked = DeliveryRequest(limit=2, each=2, bridge="jobs")
        first = (await world.store.take_deliveries(asked, RESERVED)).items
        then = (await world.store.take_deliveries(asked, RESERVED)).items
        assert sorted(each.delivery_id for each in (*first, *then)) == ids(ours)
        assert [each.host for each in first] == ["bridge://jobs"] * 2
        assert list((await world.store.take_deliveries(asked, RESERVED)).items) == []
        done = [Attempt(delivery_id=each.delivery_id, number=1, answer="put", status=200) for each in first]
        await world.store.settle_deliveries(done)
        assert await state_of(world, first[0]) is DeliveryState.DELIVERED
