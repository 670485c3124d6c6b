"""A wire that is cut at a COMMIT: what was done is found out by reading, what was not is done again, once (I4, I8)."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from leasekeeper.core.accounts import Routing
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease
from leasekeeper.core.workers import WorkerReport
from leasekeeper.errors import StoreUnavailable
from leasekeeper.ports import ClaimRequest, Grant, Renewal, Resolution, Store
from leasekeeper.stores import migrate, open_store
from leasekeeper.stores.postgres import connections, engine
from leasekeeper.stores.sql.store import SqlStore
from tests.conformance.places import Place
from tests.conformance.world import (
    POLICY,
    START,
    Clock,
    World,
    account,
    end,
    fleet,
    profile,
    seconds,
    spec,
)
from tests.servers import PostgresServer
from tests.stores.cutter import Cut, Cutter, cutter


@pytest.fixture
def door(postgres: PostgresServer) -> Iterator[Cutter]:
    with cutter(postgres) as opened:
        yield opened


@dataclass(slots=True)
class Both:
    """One database, through the door that can be cut and beside it."""

    through: Store
    world: World
    grant: Grant | None = None

    async def close(self) -> None:
        await self.through.close()
        await self.world.store.close()

    @property
    def held(self) -> Grant:
        assert self.grant is not None
        return self.grant


async def both(url: str, door: Cutter) -> Both:
    await migrate(url)
    clock = Clock()
    world = World(url, await open_store(url, policy=POLICY, clock=clock), clock, POLICY, Place(url=url))
    await world.declare(profile("p1"), profile("p2"))
    await world.offer("visit")
    database = str(conninfo_to_dict(url)["dbname"])
    return Both(await open_store(door.url(database), policy=POLICY, clock=clock), world)


async def holding(both: Both) -> None:
    both.grant = await both.world.run("p1")


async def lost(both: Both) -> None:
    await holding(both)
    both.world.clock.now = both.held.lease.expires_at


async def swept(both: Both) -> None:
    await lost(both)
    await both.world.store.expire()


async def waiting(both: Both) -> None:
    await both.world.add("p1")


async def due(both: Both) -> None:
    await both.world.add("p1", run_at=START + seconds(5))
    both.world.advance(5)


async def nothing(both: Both) -> None:
    return None


def decision(target: Target, record_id: str, action: Action) -> Decision:
    return Decision(target=target, id=record_id, action=action, note="so", actor="ann")


CLAIM = ClaimRequest(worker_id=WorkerId("w1"), incarnation="i", tasks=("visit",))
REPORT = WorkerReport(worker_id=WorkerId("w2"), incarnation="i2", pool="default", tasks=("visit",))
JUMP = Event(at=START, type=EventType.CLOCK_JUMPED)

Call = Callable[[Both], Awaitable[Any]]

# What is done, what must be there first, and the events that it must leave, each once.
CALLS: dict[str, tuple[Callable[[Both], Awaitable[None]], Call, list[str]]] = {
    "apply": (
        nothing,
        lambda b: b.through.apply(fleet(profile("p3")), actor="ann"),
        ["profile_added", "fleet_applied"],
    ),
    "submit": (nothing, lambda b: b.through.submit([spec("p1")]), ["job_submitted"]),
    "claim": (waiting, lambda b: b.through.claim(CLAIM), ["lease_granted"]),
    "checkpoint": (holding, lambda b: b.through.checkpoint(b.held.lease.ref, "seen"), ["checkpoint_saved"]),
    "enter_section": (holding, lambda b: b.through.enter_section(b.held.lease.ref, "pay"), ["section_entered"]),
    "settle": (holding, lambda b: b.through.settle([end(b.held.lease.ref)]), ["run_settled"]),
    "expire": (lost, lambda b: b.through.expire(), ["lease_expired"]),
    "resolve": (
        swept,
        lambda b: b.through.resolve([Resolution(lease_id=b.held.lease.lease_id)]),
        ["stale_resolved"],
    ),
    "promote": (due, lambda b: b.through.promote(), ["job_due"]),
    "decide": (
        nothing,
        lambda b: b.through.decide(decision(Target.PROFILE, "p1", Action.DISABLE)),
        ["profile_decided"],
    ),
    "pause": (nothing, lambda b: b.through.decide(decision(Target.ACCOUNT, "shop", Action.PAUSE)), ["account_paused"]),
    "report": (nothing, lambda b: b.through.report(REPORT), ["worker_started"]),
    "record": (nothing, lambda b: b.through.record(JUMP), ["clock_jumped"]),
}


@pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.name.lower())
@pytest.mark.parametrize("name", CALLS)
async def test_an_operation_whose_wire_is_cut_is_done_once_and_answered(
    postgres_url: str, door: Cutter, name: str, cut: Cut
) -> None:
    first, call, expected = CALLS[name]
    pair = await both(postgres_url, door)
    try:
        await first(pair)
        before = len(await pair.world.events())
        door.cut(cut)
        answer = await call(pair)
        assert door.cut_off.is_set()
        new = (await pair.world.events())[before:]
        assert [event.type for event in new] == expected
        if isinstance(answer, list):
            assert len(answer) == 1
            assert all(getattr(each, "refused", None) is None for each in answer)
    finally:
        await pair.close()


async def test_a_claim_whose_answer_was_lost_gives_the_job_that_was_granted(postgres_url: str, door: Cutter) -> None:
    pair = await both(postgres_url, door)
    try:
        await waiting(pair)
        door.cut(Cut.AFTER)
        (grant,) = await pair.through.claim(CLAIM)
        assert (grant.lease.token, [lease.token for lease in await pair.world.all(Lease)]) == (1, [1])
        (settled,) = await pair.through.settle([end(grant.lease.ref)])
        assert settled.refused is None
    finally:
        await pair.close()


async def test_a_heartbeat_whose_wire_is_cut_is_simply_done_again(postgres_url: str, door: Cutter) -> None:
    pair = await both(postgres_url, door)
    try:
        await holding(pair)
        pair.world.advance(20)
        for cut in Cut:
            door.cut(cut)
            (answer,) = await pair.through.renew([Renewal(ref=pair.held.lease.ref)])
            assert answer.expires_at == pair.world.now + seconds(60)
            assert door.cut_off.is_set()
    finally:
        await pair.close()


async def test_a_commit_that_nobody_can_ask_about_is_an_error_that_says_so(
    postgres_url: str, door: Cutter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller asks again with the same key, and gets the job that was made (I8)."""
    monkeypatch.setattr(engine, "COMMIT_LOOKUP_SECONDS", 0.2)
    pair = await both(postgres_url, door)
    try:
        await pair.through.submit([spec("p2")])
        wanted = spec("p1", idempotency_key="order-7")
        door.cut(Cut.AFTER, then_shut=True)
        with pytest.raises(StoreUnavailable, match="check, then repeat it"):
            await pair.through.submit([wanted])
        assert door.cut_off.is_set()
        door.cut()
        door.open()
        (again,) = await pair.through.submit([wanted])
        assert again.already_handled
        assert len(await pair.world.all(Job, profile_id="p1")) == 1
    finally:
        await pair.close()


async def test_an_ending_stands_though_the_wake_up_after_it_failed_and_is_healed_later(
    postgres_url: str, door: Cutter
) -> None:
    pair = await both(postgres_url, door)
    try:
        await pair.world.declare(account(routing=Routing.ACCOUNT), profile("p1"), profile("p2"))
        await pair.world.submit(spec("p1"), spec("p2"))
        (grant,) = await pair.through.claim(CLAIM)
        assert await pair.through.claim(CLAIM) == []
        door.cut(None, Cut.BEFORE, Cut.BEFORE, Cut.BEFORE)
        (settled,) = await pair.through.settle([end(grant.lease.ref)])
        assert (settled.refused, settled.job_state) == (None, "completed")
        door.cut()
        assert await pair.world.claim() == []
        assert await pair.through.heal() == 1
        assert (await pair.world.take()).lease.profile_id == "p2"
    finally:
        await pair.close()


async def test_a_server_that_cannot_be_reached_twice_is_an_error_and_nothing_was_done(
    postgres_url: str, door: Cutter
) -> None:
    pair = await both(postgres_url, door)
    try:
        await pair.through.submit([spec("p2")])
        before = await pair.world.everything()
        door.shut()
        with pytest.raises(StoreUnavailable):
            await pair.through.submit([spec("p1")])
        with pytest.raises(StoreUnavailable):
            await pair.through.stats()
        assert await pair.world.everything() == before
        door.open()
        assert len(await pair.through.submit([spec("p1")])) == 1
    finally:
        await pair.close()


async def test_the_answer_to_the_question_may_be_lost_too(postgres_url: str) -> None:
    await migrate(postgres_url)
    store = await open_store(postgres_url)
    try:
        assert isinstance(store, SqlStore)
        asked = store._engine
        assert isinstance(asked, engine.PostgresEngine)
        with connections.connect(postgres_url, "") as connection:
            connection.execute("INSERT INTO commits (nonce) VALUES ('committed')")
        # Asked again and again, as one does whose answers are lost: what was never committed never becomes so.
        assert [asked._committed("never") for _ in range(3)] == [False, False, False]
        assert [asked._committed("committed") for _ in range(3)] == [True, True, True]
    finally:
        await store.close()
