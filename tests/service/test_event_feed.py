"""The feed of events: one reader however many listen, nothing missed, nobody slowed down by a slow one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from leasekeeper.core.events import Event, EventType
from leasekeeper.core.ids import ProfileId
from leasekeeper.core.policy import Policy
from leasekeeper.ports import Store
from leasekeeper.service import event_feed
from leasekeeper.service.event_feed import MAX_BEHIND, MAX_REMEMBERED, EventFeed, FeedItem, Listener
from leasekeeper.stores import open_store

AT = datetime(2031, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def feeding(url: str) -> AsyncIterator[tuple[Store, EventFeed]]:
    store = await open_store(url, policy=Policy())
    try:
        feed = EventFeed(store, timedelta(seconds=1))
        await feed.read()
        yield store, feed
    finally:
        await store.close()


async def write(store: Store, count: int, profile_id: str = "p1") -> None:
    for _ in range(count):
        await store.record(Event(at=AT, type=EventType.MANUAL_USE_DETECTED, profile_id=ProfileId(profile_id)))


def heard(listener: Listener) -> list[int]:
    """The numbers of the events that wait for a listener."""
    found = []
    while not listener.waiting.empty():
        item = listener.waiting.get_nowait()
        assert item is not None
        found.append(item.event.seq)
    return found


async def test_two_hundred_listeners_cost_one_read(sqlite_url: str) -> None:
    async with feeding(sqlite_url) as (store, feed):
        listeners = [feed.listen({}) for _ in range(200)]
        before = feed.reads
        await write(store, 5)
        await feed.read()
        assert feed.reads == before + 1
        for listener in listeners:
            assert listener is not None
            assert heard(listener) == [1, 2, 3, 4, 5]
        await feed.read()
        assert all(listener is not None and not heard(listener) for listener in listeners)


async def test_a_listener_hears_what_it_asked_for(sqlite_url: str) -> None:
    async with feeding(sqlite_url) as (store, feed):
        one = feed.listen({"profile_id": frozenset({"p1", "p3"})})
        other = feed.listen({"type": frozenset({"lease_granted"})})
        await write(store, 1, "p1")
        await write(store, 1, "p2")
        await write(store, 1, "p3")
        await feed.read()
        assert one is not None
        assert other is not None
        assert (heard(one), heard(other)) == ([1, 3], [])


async def test_a_slow_listener_is_cut_off_and_the_others_are_not(sqlite_url: str) -> None:
    async with feeding(sqlite_url) as (store, feed):
        slow, quick = feed.listen({}), feed.listen({})
        assert slow is not None
        assert quick is not None
        got: list[int] = []
        for _ in range(3):
            await write(store, MAX_BEHIND // 2)
            await feed.read()
            got += heard(quick)
        assert got == list(range(1, 3 * (MAX_BEHIND // 2) + 1))
        assert (slow.cut_off, quick.cut_off) == (True, False)
        assert len(heard(slow)) == MAX_BEHIND


async def test_whoever_comes_back_goes_on_where_it_was(sqlite_url: str) -> None:
    async with feeding(sqlite_url) as (store, feed):
        await write(store, 3)
        await feed.read()
        reads = feed.reads
        again = feed.listen({}, after=1)
        assert again is not None
        assert heard(again) == [2, 3]
        assert feed.reads == reads


async def test_a_position_that_is_no_longer_remembered_is_refused(sqlite_url: str) -> None:
    async with feeding(sqlite_url) as (store, feed):
        await write(store, 3)
        await feed.read()
        feed._recent.popleft()
        assert feed.listen({}, after=0) is None
        assert feed.listen({}, after=1) is not None
        assert feed._recent.maxlen == MAX_REMEMBERED


async def test_a_feed_that_starts_late_does_not_send_what_was_before(sqlite_url: str) -> None:
    store = await open_store(sqlite_url, policy=Policy())
    try:
        await write(store, 4)
        feed = EventFeed(store, timedelta(seconds=1))
        await feed.read()
        listener = feed.listen({})
        await write(store, 1)
        await feed.read()
        assert listener is not None
        assert heard(listener) == [5]
        assert feed.listen({}, after=1) is None
    finally:
        await store.close()


async def test_a_gap_keeps_the_position_back_until_it_is_filled_or_given_up(sqlite_url: str) -> None:
    async with feeding(sqlite_url) as (_, feed):
        feed._advance([1, 2, 5])
        assert feed.position == 2
        feed._advance([3])
        assert feed.position == 3
        feed._advance([4])
        assert feed.position == 5
        feed._advance([8])
        assert feed.position == 5
        feed._missing = dict.fromkeys(feed._missing, 0.0)
        feed._advance([])
        assert feed.position == 8
        assert (feed._missing, feed._above) == ({}, set())


async def test_a_listener_counts_until_it_leaves(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was cut off may still have a connection."""
    monkeypatch.setattr(event_feed, "MAX_LISTENERS", 1)
    async with feeding(sqlite_url) as (_, feed):
        slow = feed.listen({})
        assert slow is not None
        event = Event(at=AT, type=EventType.LEASE_GRANTED)
        for number in range(MAX_BEHIND + 1):
            feed._publish(FeedItem(event, number))
        assert slow.cut_off
        assert feed.listen({}) is None
        feed.leave(slow)
        assert feed.listen({}) is not None
