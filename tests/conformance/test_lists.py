"""Lists: every kind, every filter, pages without gaps or repeats, and the counts."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.core.accounts import Account, Limit, Proxy, Routing
from leasekeeper.core.alerts import Endpoint
from leasekeeper.core.decisions import Action, Review, Target
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job, OnConflict
from leasekeeper.core.leases import Lease, Mode, RunRecord
from leasekeeper.core.notes import Note, NoteAbout
from leasekeeper.core.pauses import Pause
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.schedules import Schedule, ScheduleState
from leasekeeper.core.secrets import Secret
from leasekeeper.core.snapshots import Snapshot, Verdict
from leasekeeper.core.tokens import ApiToken
from leasekeeper.core.workers import Worker
from leasekeeper.errors import InputError, NotFound
from tests.conformance.test_snapshots import saved_by
from tests.conformance.world import KINDS, NewWorld, World, account, limit, profile, proxy, schedule, spec

ALL_KINDS = (*KINDS, Event)


async def some_of_everything(world: World) -> dict[str, str]:
    """A store with records of every kind in several states. Gives ids by a short name."""
    await world.declare(
        profile("a1", "alpha", proxy_id="exit_us", labels={"tier": "gold"}),
        profile("a2", "alpha", pool="eu", max_active_runs=2),
        profile("b1", "beta", labels={"tier": "gold", "other": "x"}),
        proxy("exit_us"),
        proxy("exit_eu", region="EU"),
        limit("eu", 5),
        limit("us", 7),
        schedule("s1", profile_id="a1"),
        schedule("s2", pool="eu"),
    )
    for n in (1, 2):
        await world.token(f"{n}" * 12, name=f"t{n}")
        await world.secret(f"s{n}", key_id=f"k{n}")
        await world.endpoint(f"e{n}")
    await world.offer("visit", "report", worker_id="w2", incarnation="i2", pool="eu")
    await world.decide_account(Action.PAUSE, "beta")
    await world.decide(Target.SCHEDULE, "s2", Action.PAUSE)
    await world.add("a1", idempotency_key="k1", callback_url="https://hook.test/1")
    done = await world.take(machine="rack1")
    await saved_by(world, done, Verdict.LOGGED_IN)
    await world.add("a1", max_attempts=1, callback_url="https://hook.test/2")
    dead = await world.take(machine="rack1")
    await saved_by(world, dead, reason="TIMEOUT")
    await world.send("https://other.test/1", 200)
    await world.send("https://gone.test:8443/1", 410)
    await world.decide_job(await world.job(dead), Action.DROP)
    await world.add("a1")
    review = await world.take(machine="rack1")
    await world.finish(review, "LOGIN_REQUIRED")
    await world.clear("a1")
    shared = await world.submit(spec("a2", "report", shared=True), spec("a2", "visit", shared=True))
    running = await world.take(pool="eu", tasks=("report",))
    await world.store.write_note(running.lease.ref, "seen in a run")
    await world.store.write_note(running.lease.ref, "of all its profiles", about=NoteAbout.ACCOUNT)
    await world.decide_profile(Action.NOTE, "a1")
    await world.decide_account(Action.NOTE, "beta")
    paused = await world.add("b1")
    later = await world.add("a1", run_at=world.now + timedelta(days=1))
    skipped = await world.add("a2", pool="eu", on_conflict=OnConflict.SKIP)
    wrong = await world.add("a1", expected_language="fr")
    await world.decide(Target.SCHEDULE, "s1", Action.RUN)
    await world.store.fire()
    assert skipped.state == "skipped"
    await world.pause("pool:us")
    await world.pause("worker:w2", until=world.now + timedelta(days=1))
    return {
        "done": str(done.lease.job_id),
        "dead": str(dead.lease.job_id),
        "review": str(review.lease.job_id),
        "running": shared[0].job_id,
        "queued": shared[1].job_id,
        "paused": paused.job_id,
        "later": later.job_id,
        "skipped": skipped.job_id,
        "wrong": wrong.job_id,
        "running_run": running.lease.run_id,
        "done_run": done.lease.run_id,
    }


def one_of(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if value is not None else ""


def labels_of(record: Profile) -> list[str]:
    return [f"{name}={value}" for name, value in record.labels.items()]


def is_open(lease: Lease) -> bool:
    return lease.ended_at is None or lease.unresolved


def begins(lease: Lease, text: str) -> bool:
    """Whether the id of a lease begins so: a text without a token may also be the beginning of its profile's."""
    return lease.lease_id.startswith(text) if ":" in text else lease.profile_id.startswith(text)


POOLS = {"p1": "default", "a1": "default", "a2": "eu", "b1": "default"}
# How each filter picks records, said a second time: (kind, filter, values to try, the rule).
RULES: list[tuple[type[Any], str, tuple[str, ...], Any]] = [
    (Account, "account_id", ("alpha", "nobody"), lambda r, v: r.account_id == v),
    (Account, "paused", ("true", "false"), lambda r, v: one_of(r.paused) == v),
    (Profile, "profile_id", ("a1", "nobody"), lambda r, v: r.profile_id == v),
    (Profile, "account_id", ("alpha", "nobody"), lambda r, v: r.account_id == v),
    (Profile, "pool", ("eu", "nowhere"), lambda r, v: r.pool == v),
    (Lane, "profile_id", ("a1", "nobody"), lambda r, v: r.profile_id == v),
    (Lane, "account_id", ("alpha", "nobody"), lambda r, v: r.account_id == v),
    (Lane, "pool", ("eu", "default", "nowhere"), lambda r, v: POOLS.get(r.profile_id) == v),
    (Lane, "state", ("available", "leased", "stale"), lambda r, v: r.state == v),
    (Schedule, "schedule_id", ("s1", "nothing"), lambda r, v: r.schedule_id == v),
    (ScheduleState, "schedule_id", ("s1", "nothing"), lambda r, v: r.schedule_id == v),
    (ScheduleState, "paused", ("true", "false"), lambda r, v: one_of(r.paused) == v),
    (Job, "schedule", ("s1", "s2"), lambda r, v: r.labels.get("schedule") == v),
    (Profile, "label", ("tier=gold", "tier=", "=gold", "other=gold"), lambda r, v: v in labels_of(r)),
    (Account, "prefix", ("al", "alpha", "x"), lambda r, v: r.account_id.startswith(v)),
    (Profile, "prefix", ("a", "a1", "a11"), lambda r, v: r.profile_id.startswith(v)),
    (Lane, "prefix", ("a", "a1", "a11", "_", "%"), lambda r, v: r.profile_id.startswith(v)),
    (Lane, "label", ("tier=gold", "tier=silver"), lambda r, v: r.profile_id in {"tier=gold": ("a1", "b1")}.get(v, ())),
    (Job, "prefix", ("0", "{done}", "{done:.13}", "{done:.18}", "x"), lambda r, v: r.job_id.startswith(v)),
    (RunRecord, "prefix", ("0", "{done_run:.18}", "x"), lambda r, v: r.run_id.startswith(v)),
    (Lease, "prefix", ("a", "a2", "a2:", "a2:1", "a2:9", "a:1", "x"), lambda r, v: is_open(r) and begins(r, v)),
    (Review, "prefix", ("0", "x"), lambda r, v: r.review_id.startswith(v)),
    (Worker, "prefix", ("i", "i2", "x"), lambda r, v: r.incarnation.startswith(v)),
    (Delivery, "prefix", ("0", "x"), lambda r, v: r.delivery_id.startswith(v)),
    (ApiToken, "prefix", ("1", "111", "x"), lambda r, v: r.token_id.startswith(v)),
    (Endpoint, "prefix", ("e", "e1", "x"), lambda r, v: r.endpoint_id.startswith(v)),
    (Endpoint, "endpoint_id", ("e1", "nobody"), lambda r, v: r.endpoint_id == v),
    (Endpoint, "state", ("active", "disabled"), lambda r, v: r.state == v),
    (Delivery, "endpoint_id", ("e1", "nobody"), lambda r, v: r.endpoint_id == v),
    (Schedule, "prefix", ("s", "s1", "x"), lambda r, v: r.schedule_id.startswith(v)),
    (ScheduleState, "prefix", ("s", "s1", "x"), lambda r, v: r.schedule_id.startswith(v)),
    (RunRecord, "stop_reason", ("TIMEOUT", "LOGIN_REQUIRED", "NEVER"), lambda r, v: r.stop_reason == v),
    (Review, "reason", ("LOGIN_REQUIRED", "NEVER"), lambda r, v: r.reason == v),
    (Proxy, "proxy_id", ("exit_eu", "nowhere"), lambda r, v: r.proxy_id == v),
    (Limit, "pool", ("eu", "nowhere"), lambda r, v: r.pool == v),
    (Job, "job_id", ("{done}", "nobody"), lambda r, v: r.job_id == v),
    (
        Job,
        "state",
        ("scheduled", "queued", "blocked", "running", "review", "completed", "dead", "skipped", "cancelled"),
        lambda r, v: r.state == v,
    ),
    (Job, "account_id", ("alpha", "beta", "nobody"), lambda r, v: r.account_id == v),
    (Job, "profile_id", ("a2", "nobody"), lambda r, v: r.profile_id == v),
    (Job, "task", ("visit", "report", "nothing"), lambda r, v: r.task == v),
    (Job, "pool", ("eu", "default", "nowhere"), lambda r, v: r.pool == v),
    (
        Job,
        "blocked_reason",
        ("blocked_by_account_pause", "blocked_by_environment_mismatch", "blocked_by_approval"),
        lambda r, v: r.state == "blocked" and r.blocked_reason == v,
    ),
    (Job, "idempotency_key", ("k1", "k2"), lambda r, v: r.idempotency_key == v),
    (Job, "run_id", ("{running_run}", "nobody"), lambda r, v: r.run_id == v),
    (Job, "dropped", ("true", "false"), lambda r, v: one_of(r.dropped) == v),
    *(
        rule
        for kind in (Lease, RunRecord)
        for rule in (
            (kind, "status", ("running", "releasing", "released", "expired", "revoked"), lambda r, v: r.status == v),
            (kind, "live", ("true", "false"), lambda r, v: one_of(r.ended_at is None) == v),
            (kind, "lease_id", ("a1:1", "a1:99", "nonsense"), lambda r, v: r.lease_id == v),
            (kind, "profile_id", ("a1", "nobody"), lambda r, v: r.profile_id == v),
            (kind, "account_id", ("alpha", "nobody"), lambda r, v: r.account_id == v),
            (kind, "job_id", ("{done}", "nobody"), lambda r, v: r.job_id == v),
            (kind, "run_id", ("{done_run}", "nobody"), lambda r, v: r.run_id == v),
            (kind, "worker_id", ("w1", "nobody"), lambda r, v: r.worker_id == v),
        )
    ),
    (Lease, "pool", ("eu", "nowhere"), lambda r, v: r.pool == v),
    (RunRecord, "result", ("completed", "failed", "started", "blocked"), lambda r, v: r.result == v),
    (RunRecord, "task", ("visit", "report"), lambda r, v: r.task == v),
    (Event, "type", ("job_submitted", "account_paused", "lease_expired"), lambda r, v: r.type == v),
    (Event, "account_id", ("alpha", "nobody"), lambda r, v: r.account_id == v),
    (Event, "profile_id", ("a1", "nobody"), lambda r, v: r.profile_id == v),
    (Event, "job_id", ("{done}", "nobody"), lambda r, v: r.job_id == v),
    (Event, "run_id", ("{done_run}", "nobody"), lambda r, v: r.run_id == v),
    (Event, "worker_id", ("w1", "nobody"), lambda r, v: r.worker_id == v),
    (Event, "since", ("0", "7", "99999"), lambda r, v: r.seq > int(v)),
    (Review, "open", ("true", "false"), lambda r, v: one_of(r.decided_at is None) == v),
    (Review, "target", ("profile", "job"), lambda r, v: r.target == v),
    (Review, "pool", ("eu", "default", "nowhere"), lambda r, v: POOLS.get(r.profile_id) == v),
    (Review, "account_id", ("alpha", "nobody"), lambda r, v: r.account_id == v),
    (Review, "profile_id", ("a1", "nobody"), lambda r, v: r.profile_id == v),
    (Review, "job_id", ("{review}", "nobody"), lambda r, v: r.job_id == v),
    (Review, "review_id", ("nobody",), lambda r, v: r.review_id == v),
    (Lane, "saved", ("true",), lambda r, v: one_of(r.saved) == v),
    (Snapshot, "prefix", ("0", "x"), lambda r, v: r.snapshot_id.startswith(v)),
    (Snapshot, "snapshot_id", ("nobody",), lambda r, v: r.snapshot_id == v),
    (Snapshot, "account_id", ("alpha", "nobody"), lambda r, v: r.account_id == v),
    (Snapshot, "profile_id", ("a1", "nobody"), lambda r, v: r.profile_id == v),
    (Snapshot, "run_id", ("{done_run}", "nobody"), lambda r, v: r.run_id == v),
    (Snapshot, "verdict", ("logged_in", "logged_out", "not_asked"), lambda r, v: r.verdict == v),
    (Snapshot, "discarded", ("true", "false"), lambda r, v: one_of(r.discarded_at is not None) == v),
    (Note, "prefix", ("0", "x"), lambda r, v: r.note_id.startswith(v)),
    (Note, "note_id", ("nobody",), lambda r, v: r.note_id == v),
    (Note, "about", ("profile", "account"), lambda r, v: r.about == v),
    (Note, "account_id", ("alpha", "beta", "nobody"), lambda r, v: r.account_id == v),
    (Note, "profile_id", ("a1", "a2", "nobody"), lambda r, v: r.profile_id == v),
    (Note, "job_id", ("{running}", "nobody"), lambda r, v: r.job_id == v),
    (Note, "run_id", ("{running_run}", "nobody"), lambda r, v: r.run_id == v),
    (Worker, "incarnation", ("i2", "nobody"), lambda r, v: r.incarnation == v),
    (Worker, "worker_id", ("w2", "nobody"), lambda r, v: r.worker_id == v),
    (Worker, "pool", ("eu", "nowhere"), lambda r, v: r.pool == v),
    (ApiToken, "token_id", ("1" * 12, "nobody"), lambda r, v: r.token_id == v),
    (ApiToken, "name", ("t2", "nobody"), lambda r, v: r.name == v),
    (Pause, "pause_id", ("pool:us", "all"), lambda r, v: r.pause_id == v),
    (Secret, "name", ("s1", "nobody"), lambda r, v: r.name == v),
    (Secret, "key_id", ("k2", "nobody"), lambda r, v: r.key_id == v),
    (Delivery, "job_id", ("{done}", "nobody"), lambda r, v: r.job_id == v),
    (Delivery, "delivery_id", ("nobody",), lambda r, v: r.delivery_id == v),
    (Delivery, "state", ("pending", "delivered", "exhausted"), lambda r, v: r.state == v),
    (
        Delivery,
        "host",
        ("hook.test", "gone.test", "gone.test:8443", "hook", "gone.test:", "nowhere"),
        lambda r, v: v in (r.host, r.host.partition(":")[0]),
    ),
]


async def test_every_filter_of_every_kind_picks_what_it_says(new_world: NewWorld) -> None:
    async with new_world() as world:
        names = await some_of_everything(world)
        for kind, name, values, rule in RULES:
            everything = await world.all(kind)
            for value in (value.format(**names) for value in values):
                expected = [record for record in everything if rule(record, value)]
                found = await world.paged(kind, 1000, {name: value})
                assert found == expected, f"{kind.__name__} {name}={value}"


async def test_of_many_ids_that_begin_alike_the_first_are_found(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.declare(profile("a1", "alpha"))
        jobs = [await world.add("a1", job_id=f"job_{n:02}") for n in range(12)]
        page = await world.store.find(Job, {"prefix": "job_"}, limit=4)
        assert {job.job_id for job in page.items} == {job.job_id for job in jobs[:4]}
        assert page.after is None, "nothing continues it"


async def test_a_label_to_look_for_has_a_value(new_world: NewWorld) -> None:
    async with new_world() as world:
        with pytest.raises(InputError, match="NAME=VALUE"):
            await world.store.find(Lane, {"label": "gold"})


async def test_a_lease_that_is_revoked_is_listed_so_while_its_holder_may_still_act(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.revoke(grant, over=False)
        for where in ({"status": "revoked"}, {"live": "true"}):
            assert [lease.lease_id for lease in await world.paged(Lease, 10, where)] == [grant.lease.lease_id]


async def test_a_conflict_with_a_run_is_among_its_events(new_world: NewWorld) -> None:
    async with new_world(account(routing=Routing.ACCOUNT), profile("p1"), profile("p2")) as world:
        grant = await world.run("p1")
        await world.add("p2", on_conflict=OnConflict.SKIP)
        reported = [event for event in await world.all(Event) if event.run_id == grant.lease.run_id]
        assert {event.profile_id for event in reported} == {"p1", "p2"}
        assert await world.paged(Event, 10, {"run_id": grant.lease.run_id}) == reported


async def test_filters_add_up(new_world: NewWorld) -> None:
    async with new_world() as world:
        names = await some_of_everything(world)
        where: Mapping[str, str] = {"account_id": "alpha", "task": "visit", "state": "dead", "dropped": "true"}
        assert [job.job_id for job in await world.paged(Job, 10, where)] == [names["dead"]]
        assert await world.paged(Job, 10, {**where, "pool": "eu"}) == []
        blocked = {"state": "blocked", "account_id": "beta"}
        assert [job.job_id for job in await world.paged(Job, 10, blocked)] == [names["paused"]]


async def test_a_filter_that_a_kind_does_not_have_is_refused_with_those_it_has(new_world: NewWorld) -> None:
    async with new_world() as world:
        has = {kind: {name for k, name, *_ in RULES if k is kind} for kind in ALL_KINDS}
        for kind in ALL_KINDS:
            with pytest.raises(InputError) as refused:
                await world.store.find(kind, {"colour": "red", "shape": "x"})
            assert refused.value.code == "INVALID_INPUT"
            assert [problem.where for problem in refused.value.problems] == ["colour", "shape"]
            assert all(name in str(refused.value) for name in has[kind])


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_has_a_limit(new_world: NewWorld, limit: int) -> None:
    async with new_world() as world:
        with pytest.raises(InputError, match="limit"):
            await world.store.find(Job, limit=limit)


@pytest.mark.parametrize("after", ["x", "-1", "", "1.5", "9" * 30])
async def test_a_place_to_go_on_that_no_page_gave_is_refused(new_world: NewWorld, after: str) -> None:
    async with new_world() as world:
        for kind in (Job, Event, Delivery):
            with pytest.raises(InputError):
                await world.store.find(kind, after=after)
        with pytest.raises(InputError):
            await world.store.find(Event, {"since": after})


@pytest.mark.parametrize("page", [1, 2, 7])
async def test_pages_have_no_gaps_and_no_repeats(new_world: NewWorld, page: int) -> None:
    async with new_world() as world:
        await some_of_everything(world)
        for kind in ALL_KINDS:
            whole: list[Any] = await world.all(kind)
            assert len(whole) >= 2, kind
            assert await world.paged(kind, page, {}) == whole


async def test_pages_stay_whole_while_rows_are_added(new_world: NewWorld) -> None:
    async with new_world(*(profile(f"p{n:02}", "shop") for n in range(12))) as world:
        await world.submit(*(spec(f"p{n:02}") for n in range(12)))
        for grant in await world.claim(12):
            await world.finish(grant, "LOGIN_REQUIRED")
        for kind in (Job, Lease, RunRecord, Event, Review, Lane, Profile):
            there = {str(record) for record in await world.all(kind)}
            seen: list[str] = []
            after = None
            for number in range(100):
                answer = await world.store.find(kind, after=after, limit=5)
                seen += [str(record) for record in answer.items]
                after = answer.after
                if after is None:
                    break
                new = f"q{kind.__name__}{number}"
                await world.declare(profile(new, "shop"))
                await world.run(new)
            assert after is None
            assert len(seen) == len(set(seen)), kind
            assert there <= set(seen), kind


async def test_lists_are_newest_first_or_in_order_of_their_names(new_world: NewWorld) -> None:
    async with new_world() as world:
        await some_of_everything(world)
        seqs = [job.seq for job in await world.all(Job)]
        assert seqs == sorted(seqs, reverse=True)
        events = [event.seq for event in await world.all(Event)]
        assert events == sorted(events, reverse=True)
        names = [lane.profile_id for lane in await world.all(Lane)]
        assert names == sorted(names) == ["a1", "a2", "b1", "p1"]


async def test_names_are_sorted_by_code_point_on_every_store(new_world: NewWorld) -> None:
    names = ["B", "a", "A-1", "Z", "_x", "a.b", "0", "b"]
    async with new_world(*(profile(name) for name in names)) as world:
        assert [p.profile_id for p in await world.paged(Profile, 3, {})] == sorted(names)


async def test_one_record_is_got_by_its_id(new_world: NewWorld) -> None:
    async with new_world() as world:
        await some_of_everything(world)
        for kind, key in (
            (Account, "account_id"),
            (Profile, "profile_id"),
            (Lane, "profile_id"),
            (Proxy, "proxy_id"),
            (Limit, "pool"),
            (Job, "job_id"),
            (Lease, "lease_id"),
            (RunRecord, "run_id"),
            (Review, "review_id"),
            (Worker, "incarnation"),
            (Delivery, "delivery_id"),
            (ApiToken, "token_id"),
            (Endpoint, "endpoint_id"),
            (Secret, "name"),
            (Pause, "pause_id"),
        ):
            for record in await world.all(kind):
                assert await world.store.get(kind, getattr(record, key)) == record


async def test_workers_are_listed_newest_first_page_by_page(new_world: NewWorld) -> None:
    async with new_world() as world:
        before = [worker.incarnation for worker in await world.all(Worker)]
        for incarnation in ("z", "b", "y", "a"):
            await world.offer("visit", incarnation=incarnation)
            world.advance(0 if incarnation == "b" else 1)
        await world.offer("visit", incarnation="z")  # a report does not make it any newer
        expected = ["a", "y", "b", "z", *before]
        for limit in (1, 2, 1000):
            assert [worker.incarnation for worker in await world.paged(Worker, limit, {})] == expected


async def test_a_record_that_is_not_there_is_not_found(new_world: NewWorld) -> None:
    async with new_world() as world:
        await some_of_everything(world)
        odd = ("nobody", "", "a1'--", "a1\0", "\ud83d", "%", "a_", "x" * 5000, "a1:" + "9" * 40, "a1:-1", "😀")
        for kind in KINDS:
            for name in odd:
                with pytest.raises(NotFound) as refused:
                    await world.store.get(kind, name)
                assert refused.value.code == "NOT_FOUND"


async def test_the_counts_agree_with_the_lists(new_world: NewWorld) -> None:
    async with new_world() as world:
        await some_of_everything(world)
        stats = await world.store.stats()
        jobs, lanes, leases = await world.all(Job), await world.all(Lane), await world.all(Lease)
        assert stats.jobs == counted("dropped" if job.dropped else job.state for job in jobs)
        assert stats.blocked == counted(job.blocked_reason for job in jobs if job.state == "blocked")
        assert stats.profiles == counted(lane.state for lane in lanes)
        assert stats.leases == counted(lease.pool for lease in leases if lease.ended_at is None)
        assert stats.reviews == len(await world.all(Review, open="true"))
        assert sum(stats.jobs.values()) == len(jobs)


def counted(values: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[str(value)] = counts.get(str(value), 0) + 1
    return counts


async def test_an_empty_store_lists_and_counts_nothing(new_world: NewWorld) -> None:
    async with new_world() as world:
        for kind in (Job, Lease, RunRecord, Review, Delivery, Proxy, Limit):
            page = await world.store.find(kind)
            assert (list(page.items), page.after) == ([], None)
        stats = await world.store.stats()
        assert (stats.jobs, stats.blocked, stats.leases, stats.reviews) == ({}, {}, {}, 0)
        assert stats.profiles == {"available": 1}


async def test_an_event_can_be_recorded_by_itself(new_world: NewWorld) -> None:
    async with new_world() as world:
        event = Event(
            at=world.now - timedelta(days=9), type=EventType.CLOCK_JUMPED, data={"seconds": 7}, actor="sweeper"
        )
        await world.store.record(event)
        (kept,) = await world.events(type="clock_jumped")
        assert (kept.at, kept.data, kept.actor) == (world.now, {"seconds": 7}, "sweeper")
        assert kept.seq > 0


async def test_a_shared_lease_is_listed_with_its_mode(new_world: NewWorld) -> None:
    async with new_world() as world:
        await some_of_everything(world)
        (lease,) = await world.all(Lease, live="true")
        assert (lease.mode, lease.pool, lease.profile_id) == (Mode.SHARED, "eu", "a2")


async def test_profiles_are_found_by_the_beginning_of_their_account(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.declare(profile("b1", "books_us"), profile("b2", "books_uk"), profile("s1", "shoes"))
        assert [lane.profile_id for lane in await world.all(Lane, account_prefix="books_")] == ["b1", "b2"]
        assert [lane.profile_id for lane in await world.all(Lane, account_prefix="books_uk")] == ["b2"]
        assert await world.all(Lane, account_prefix="toys") == []
