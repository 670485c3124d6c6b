"""Seeded bugs: mistakes that other queues have made, each with a story in which it must be noticed.

A mistake is put into the store of this process; its story is a history that leads straight to it, so that nothing
depends on luck. Without the mistake, the same story must end without a finding.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
import pytest

from leasekeeper.core import granting, lanes, readiness
from leasekeeper.core import settle as endings
from leasekeeper.core.accounts import Account, Proxy, Routing
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, ProfileId, ProxyId, Token
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.leases import LeaseStatus, Mode, lease_id_of
from leasekeeper.core.profiles import Profile, ProfileState, ReleasePolicy
from leasekeeper.core.records import evolve
from leasekeeper.core.settle import Ending, LostFacts
from leasekeeper.errors import LeasekeeperError
from leasekeeper.stores import migrate, open_store
from leasekeeper.stores.postgres import engine as postgres
from leasekeeper.stores.postgres.pipeline import Statement
from leasekeeper.stores.postgres.transaction import STATEMENTS, PostgresTx
from leasekeeper.stores.redis import records
from leasekeeper.stores.redis.engine import RedisEngine
from leasekeeper.stores.redis.records import Records
from leasekeeper.stores.sql import claiming, heartbeats, revoking, settling
from leasekeeper.stores.sql import lanes as locked_lanes
from leasekeeper.stores.sql.statements import for_one, for_postgres
from tests.chaos.stage import FOUND, Stage, a_fleet, a_held_call, a_job, a_lost_commit, a_stage
from tests.model import histories
from tests.model.machine import Clock, Machine

Mistake = Callable[[pytest.MonkeyPatch], None]
Story = Callable[[str], list[str]]

POSTGRES: Final = "postgres"
REDIS: Final = "redis"
LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Bug:
    """One mistake, a story, and what the story's judge must say.

    What the stores have in common is tried on SQLite; what needs two transactions at once, or a wire, on PostgreSQL,
    and on Redis, where commits compare instead of waiting.
    """

    name: str
    mistake: Mistake
    story: Story
    noticed: str
    store: str = "sqlite"


# Stories that the checker judges


def judged(fleet: Fleet, *specs: JobSpec) -> Callable[[Callable[[Stage], Awaitable[None]]], Story]:
    """A story on a stage with this fleet and these jobs. What is found is what the checker says."""

    def reported(story: Callable[[Stage], Awaitable[None]]) -> Story:
        async def run(url: str) -> list[str]:
            async with a_stage(url, fleet, specs) as stage:
                await story(stage)
                return await stage.verdict(fleet)

        return lambda url: asyncio.run(run(url))

    return reported


@judged(a_fleet(), a_job())
async def a_lost_worker_comes_back(stage: Stage) -> None:
    """Its profile was recovered, and its job is with somebody else, when it reports how its run ended."""
    old, new, sweeper = [await stage.client(who) for who in ("old", "new", "sweeper")]
    lost = await old.claim_one()
    await old.checkpoint(lost)
    for seconds in (60, 15, 120):
        stage.pass_time(seconds)
        await sweeper.sweep()
    again = await new.claim_one()
    await old.settle(lost)
    stage.pass_time(1)
    await old.renew(lost)
    await new.settle(again)


@judged(a_fleet(), a_job(), a_job())
async def the_clock_is_set_back_between_two_grants(stage: Stage) -> None:
    for who in ("one", "two"):
        client = await stage.client(who)
        await client.settle(await client.claim_one())
        stage.pass_time(1)
        stage.jump(-3600)


@judged(a_fleet(3, limit=1), a_job("p1"), a_job("p2"), a_job("p3"))
async def an_ending_is_told_twice(stage: Stage) -> None:
    """The answer was lost, so the worker says it again; then others want the pool's only place."""
    one, two = await stage.client("one"), await stage.client("two")
    grant = await one.claim_one()
    await one.settle(grant)
    await one.settle(grant)
    await one.claim()
    await two.claim()


@judged(a_fleet(), a_job(), a_job())
async def a_lease_is_revoked(stage: Stage) -> None:
    """Its holder is cut off and does not know; it acts until its own deadline."""
    holder, other, sweeper = [await stage.client(who) for who in ("holder", "other", "sweeper")]
    grant = await holder.claim_one()
    await holder.checkpoint(grant)
    await sweeper.revoke(grant)
    for seconds in (1, 15):
        stage.pass_time(seconds)
        await sweeper.sweep()
    await other.claim()


def raced(
    fleet: Fleet, *specs: JobSpec, after: str, race: Callable[[Stage], Awaitable[Sequence[Awaitable[Any]]]]
) -> Story:
    """Two calls at once. The first stops once it has run `after`, the second goes as far as it can, then both go on."""

    @judged(fleet, *specs)
    async def story(stage: Stage) -> None:
        first, second = await race(stage)
        with a_held_call(stage.url, after=after) as held:
            await held.while_held(first, second)

    return story


async def _two_claims(stage: Stage) -> Sequence[Awaitable[Any]]:
    return [(await stage.client(who)).claim() for who in ("one", "two")]


async def _a_claim_and_a_whole_run(stage: Stage) -> Sequence[Awaitable[Any]]:
    one, two = await stage.client("one"), await stage.client("two")

    async def whole_run() -> None:
        for grant in await two.claim():
            await two.settle(grant)

    return [one.claim(), whole_run()]


async def _two_endings_of_one_run(stage: Stage) -> Sequence[Awaitable[Any]]:
    """The worker reports it again, over another connection, as it believes the first to be dead."""
    one, two = await stage.client("one"), await stage.client("two")
    grant = await one.claim_one()
    return [one.settle(grant), two.settle(grant)]


async def _two_sweeps(stage: Stage) -> Sequence[Awaitable[Any]]:
    one, two, worker = [await stage.client(who) for who in ("one", "two", "worker")]
    await worker.claim_one()
    stage.pass_time(60)
    return [one.expire(), two.expire()]


async def _two_resolutions(stage: Stage) -> Sequence[Awaitable[Any]]:
    one, two, worker = [await stage.client(who) for who in ("one", "two", "worker")]
    grant = await worker.claim_one()
    await worker.checkpoint(grant)
    stage.pass_time(60)
    await one.expire()
    stage.pass_time(15)
    return [one.resolve(grant), two.resolve(grant)]


async def _two_submits_of_one_key(stage: Stage) -> Sequence[Awaitable[Any]]:
    one, two = await stage.client("one"), await stage.client("two")
    return [one.submit(a_job("p1", idempotency_key="k")), two.submit(a_job("p2", idempotency_key="k"))]


@judged(a_fleet(2), a_job("p1"), a_job("p2"))
async def a_claim_loses_its_answer(stage: Stage) -> None:
    worker = await stage.client("worker")
    with a_lost_commit(arrives=True):
        await worker.claim()


@judged(a_fleet())
async def a_submit_does_not_arrive(stage: Stage) -> None:
    submitter = await stage.client("submitter")
    with a_lost_commit(arrives=False):
        await submitter.submit(a_job())


# Stories that the model judges


def modelled(history: Callable[[Machine], None]) -> Story:
    """A history by hand. What is found is the first thing in which store and model do not agree."""

    def story(url: str) -> list[str]:
        with asyncio.Runner() as runner:
            clock = Clock()
            runner.run(migrate(url))
            store = runner.run(open_store(url, clock=clock))
            try:
                history(Machine(store, clock, runner.get_loop()))
            except (AssertionError, LeasekeeperError) as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                return [f"{where.name}: {where.line} {error}"]
            finally:
                runner.run(store.close())
        return []

    return story


def begin(machine: Machine, *specs: JobSpec, routing: Routing = Routing.PROFILE, **settings: Any) -> None:
    """Two profiles of one account, and these jobs."""
    profiles = {
        name: Profile(
            profile_id=ProfileId(name),
            account_id=AccountId("anna"),
            **{"release_policy": ReleasePolicy.RECOVER, **settings},
        )
        for name in ("a1", "a2")
    }
    proxies = {"x1": Proxy(proxy_id=ProxyId("x1"), server="http://x1.example:8080")}
    accounts = {"anna": Account(account_id=AccountId("anna"), routing=routing)}
    machine.begin(fleet=Fleet(accounts=accounts, proxies=proxies, profiles=profiles), specs=list(specs))


def job(profile: str = "a1", **settings: Any) -> JobSpec:
    return JobSpec(**{"task": "buy", "profile_id": ProfileId(profile), **settings})


def claim(machine: Machine, limit: int = 1) -> None:
    machine.a_worker_claims(worker="w1", pool="default", tasks=histories.TASKS, limit=limit, lost=False)


@modelled
def a_lease_expires(machine: Machine) -> None:
    begin(machine, job(), job())
    claim(machine)
    machine.time_passes(seconds=61, swept=True, facts=FOUND)
    claim(machine)


@modelled
def a_renewal_comes_too_late(machine: Machine) -> None:
    begin(machine, job())
    claim(machine)
    machine.time_passes(seconds=61, swept=False, facts=FOUND)
    machine.leases_are_renewed(picks=[0], late=False, status=LeaseStatus.RUNNING)


@modelled
def a_run_times_out_inside_a_section(machine: Machine) -> None:
    begin(machine, job())
    claim(machine)
    machine.a_holder_works(pick=0, late=False, writes=["checkpoint", "enter pay"])
    timeout = Ending(ref=histories.NOBODY, reason="TIMEOUT", facts=histories.DONE.facts)
    machine.runs_are_settled(picks=[(0, timeout)], late=False, lost=False)


@modelled
def a_worker_is_lost_inside_a_section(machine: Machine) -> None:
    begin(machine, job())
    claim(machine)
    machine.a_worker_is_lost(pick=0, writes=["checkpoint", "enter pay"], facts=FOUND)


@modelled
def a_sharer_wants_to_change_something(machine: Machine) -> None:
    begin(machine, job(mode=Mode.SHARED), max_active_runs=2)
    claim(machine)
    machine.a_holder_works(pick=0, late=False, writes=["enter pay"])


@modelled
def three_want_to_share(machine: Machine) -> None:
    begin(machine, *[job(mode=Mode.SHARED)] * 3, max_active_runs=2)
    for _ in range(3):
        claim(machine)


@modelled
def a_job_is_given_back(machine: Machine) -> None:
    begin(machine, job(), job())
    claim(machine)
    unstarted = Ending(ref=histories.NOBODY, not_started=True)
    machine.runs_are_settled(picks=[(0, unstarted)], late=False, lost=True)
    claim(machine)


@modelled
def an_account_is_routed_as_one_while_it_is_in_use(machine: Machine) -> None:
    begin(machine, job("a1"), job("a2"))
    claim(machine)
    machine.the_fleet_changes(change=("accounts", "anna", "routing", Routing.ACCOUNT), alone=True)
    claim(machine)


@modelled
def the_clock_jumps_by_an_hour(machine: Machine) -> None:
    begin(machine, job())
    claim(machine)
    machine.the_clock_jumps(jump=3600, span=60)
    machine.a_sweeper_looks(expire=True, picks=[], facts=LostFacts(), promote=False)


@modelled
def a_sharer_meets_a_prompt_while_the_next_one_comes(machine: Machine) -> None:
    begin(machine, *[job(mode=Mode.SHARED)] * 3, max_active_runs=3)
    claim(machine)
    prompt = Ending(ref=histories.NOBODY, reason="SECURITY_PROMPT", facts=histories.DONE.facts)
    machine.a_worker_settles_and_claims_at_once(picks=[(0, prompt)], pool="default", limit=1, twice=False)


# Mistakes


def finish_by_id(patch: pytest.MonkeyPatch) -> None:
    """Whoever knows the profile ends its run, whatever the token."""
    real = settling._settle_one

    def settle_one(batch: Any, ending: Ending) -> Any:
        work = batch.works.get(ending.ref.profile_id)
        live = work.live[-1:] if work else []
        return real(batch, evolve(ending, ref=live[0].ref) if live else ending)

    patch.setattr(settling, "_settle_one", settle_one)


def tokens_are_times(patch: pytest.MonkeyPatch) -> None:
    """What grows by itself needs no counter: unless the clock is set back."""
    real = granting.new_lease

    def lease(facts: Any, *, now: datetime, **rest: Any) -> Any:
        token = Token(int(now.timestamp()))
        return evolve(real(facts, now=now, **rest), token=token, lease_id=lease_id_of(facts.lane.profile_id, token))

    patch.setattr(granting, "new_lease", lease)


def a_counter_drifts(patch: pytest.MonkeyPatch) -> None:
    """Places in a pool are counted up and down beside the leases, and down also for an ending that is refused."""
    taken = 0
    grant, end, room = claiming.record_grant, settling._settle_one, claiming._pool_room

    def record_grant(*given: Any) -> None:
        nonlocal taken
        taken += 1
        grant(*given)

    def settle_one(*given: Any) -> Any:
        nonlocal taken
        taken -= 1
        return end(*given)

    def pool_room(tx: Any, pool: str) -> int:
        (limits,) = tx.read(("lock_pool", {"pool": pool}))
        return max(0, limits[0]["max_leases"] - taken) if limits else room(tx, pool)

    patch.setattr(claiming, "record_grant", record_grant)
    patch.setattr(settling, "_settle_one", settle_one)
    patch.setattr(claiming, "_pool_room", pool_room)


def a_revoked_lease_is_over(patch: pytest.MonkeyPatch) -> None:
    """The profile goes on its way at once, as if the holder knew."""
    real = revoking.revoke

    def revoke(tx: Any, *rest: Any) -> Any:
        revoked = real(tx, *rest)
        if revoked is not None:
            tx.write("renew_runs", [heartbeats.renewal_row(evolve(revoked, expires_at=revoked.heartbeat_at))])
        return revoked

    patch.setattr(revoking, "revoke", revoke)


def expiry_frees_the_profile(patch: pytest.MonkeyPatch) -> None:
    """A lock with a time to live, as of `SET NX EX`."""

    def freed(_facts: Any, reason: str, now: datetime) -> lanes.Changes:
        return {"state": ProfileState.AVAILABLE, "state_reason": reason, "state_at": now}

    patch.setattr(settling, "profile_expired", freed)


def renewal_revives(patch: pytest.MonkeyPatch) -> None:
    """A renewal only looks at who holds the lease, not whether its time is up."""
    real = locked_lanes.refused
    patch.setattr(heartbeats, "refused", lambda tx, lease, ref, _now: real(tx, lease, ref, LONG_AGO))


def sections_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Whatever may have been sent, it is tried again."""
    patch.setattr(endings, "may_have_been_done", lambda _lease: None)


def sharers_may_change_things(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeats, "_disposable", lambda _tx, _lease: True)


def sharers_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    real = readiness.lane_gate
    patch.setattr(lanes, "lane_gate", lambda **facts: real(**{**facts, "live": 0}))


def giving_back_costs_an_attempt(patch: pytest.MonkeyPatch) -> None:
    real = endings.ended_job
    patch.setattr(settling, "ended_job", lambda job, *rest: evolve(real(job, *rest), attempt=job.attempt))


def only_the_same_key_counts(patch: pytest.MonkeyPatch) -> None:
    """A lease that was granted before the account's routing changed is not seen."""

    def held_keys(holdings: Iterable[Any]) -> dict[str, int]:
        return {holding.routing_key: holding.leases for holding in holdings}

    patch.setattr(claiming, "held_keys", held_keys)


def a_jump_is_believed(patch: pytest.MonkeyPatch) -> None:
    """The store's clock is always right: all leases expire at once."""
    patch.setattr(heartbeats, "pause_expiry", lambda *_: None)


def lanes_are_taken_as_they_were(patch: pytest.MonkeyPatch) -> None:
    """A look at the lanes that travelled with the endings is believed, though the endings changed them."""
    real = PostgresTx.write

    def write(tx: Any, name: str, rows: Sequence[Any]) -> None:
        real(tx, name, rows)
        tx._touched.clear()

    patch.setattr(PostgresTx, "write", write)


def the_pool_is_counted_first(patch: pytest.MonkeyPatch) -> None:
    """Capacity is checked outside of the lock."""

    def pool_room(tx: Any, pool: str) -> int:
        (taken,) = tx.read(("pool_leases", {"pool": pool}))
        (limits,) = tx.read(("lock_pool", {"pool": pool}))
        return max(0, int(limits[0]["max_leases"] - taken[0]["leases"]))

    patch.setattr(claiming, "_pool_room", pool_room)


def the_account_is_counted_first(patch: pytest.MonkeyPatch) -> None:
    """The same for an account's key."""

    def lock_keys(tx: Any, works: Sequence[Any], round_: Any) -> set[str]:
        accounts = sorted({work.account.account_id for work in works})
        (counts,) = tx.read(("account_keys", {"accounts": accounts}))
        tx.read(("lock_accounts", {"ids": accounts}))
        round_.keys.update(claiming.read_held_keys(counts))
        return set(accounts)

    patch.setattr(claiming, "_lock_keys", lock_keys)


class _OneSnapshot:
    """A transaction in which a lane's head and its jobs are seen as they were before the lane was locked."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        (profiles,) = tx.read(("all_profiles", {}))
        (self._heads,) = tx.read(("heads", {"ids": [row["profile_id"] for row in profiles]}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def read(self, *queries: Any) -> Any:
        answers = self._tx.read(*queries)
        if queries[0][0].startswith("lock_ready"):
            first = {row["profile_id"]: row["job_id"] for row in reversed(self._heads)}
            return [[{**row, "head_job_id": first.get(row["profile_id"])} for row in answers[0]]]
        return answers

    def clock(self, *queries: Any) -> Any:
        now, answers = self._tx.clock(*queries)
        return now, [self._heads if name == "heads" else rows for (name, _), rows in zip(queries, answers, strict=True)]


def lock_and_jobs_are_one_snapshot(patch: pytest.MonkeyPatch) -> None:
    """What the lock protects is read by the statement that takes it: as it was before others let go of it."""
    real = claiming._claim_round
    patch.setattr(claiming, "_claim_round", lambda tx, *rest: real(_OneSnapshot(tx), *rest))


def facts_are_read_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    def lock_runs(tx: Any, lease_ids: Any, also: Any = ()) -> Any:
        wanted = {"ids": sorted({*(profile_id for profile_id, _ in lease_ids), *also})}
        _, runs, jobs = tx.read(("moving_runs", wanted), ("open_runs", wanted), ("running_jobs", wanted))
        now, (rows,) = tx.clock(("lock_lanes", wanted))
        works = locked_lanes.works_from(tx, rows, map(locked_lanes.read_lease, runs))
        return now, works, {row["run_id"]: locked_lanes.read_job(row) for row in jobs}

    patch.setattr(settling, "lock_runs", lock_runs)


def sweepers_do_not_lock(patch: pytest.MonkeyPatch) -> None:
    text = "SELECT * FROM lanes WHERE profile_id IN :ids[] ORDER BY profile_id"
    patch.setitem(STATEMENTS, "lock_lanes_free", Statement("unlocked_lanes", for_postgres(text)))
    patch.setitem(STATEMENTS, "lock_lanes_free=1", Statement("unlocked_lane", for_one(text)))


def keys_are_not_unique(patch: pytest.MonkeyPatch) -> None:
    """Looked up, then inserted: nothing but luck between the two."""

    async def migrated(url: str) -> None:
        await migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP INDEX leasekeeper.jobs_key")

    patch.setattr("tests.chaos.stage.migrate", migrated)


def a_lost_commit_is_done_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(postgres.PostgresEngine, "_committed", lambda _engine, _nonce: False)


def a_lost_commit_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(postgres.PostgresEngine, "_committed", lambda _engine, _nonce: True)


def commits_compare_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Records, "compared", lambda _tx: [])


def locks_leave_no_trace(patch: pytest.MonkeyPatch) -> None:
    """What is locked is compared, but who else locks it does not notice."""
    patch.setattr(Records, "lock", lambda tx, table, keys: tx.rows(table, keys))


def unique_values_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    real = Records.commit_arguments

    def commit_arguments(tx: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(records, "Writing", _Careless)
            return real(tx)

    patch.setattr(Records, "commit_arguments", commit_arguments)


class _Careless(records.Writing):
    """Expects nothing of unique values."""

    def record(self, *what: Any) -> None:
        super().record(*what)
        self.expected.clear()


def a_lost_commit_on_redis_is_done_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RedisEngine, "_committed", lambda *_: False)


def a_lost_commit_on_redis_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RedisEngine, "_committed", lambda *_: True)


BUGS: Final = (
    Bug("a run is finished by its profile, whatever its token", finish_by_id, a_lost_worker_comes_back, "I3: settle"),
    Bug(
        "a fencing token is a time", tokens_are_times, the_clock_is_set_back_between_two_grants, "I3: p1 granted token"
    ),
    Bug("a counter drifts from what it counts", a_counter_drifts, an_ending_is_told_twice, "I1: pool default"),
    Bug("a revoked lease frees its profile at once", a_revoked_lease_is_over, a_lease_is_revoked, "I1: profile p1"),
    Bug("expiry frees the profile", expiry_frees_the_profile, a_lease_expires, "I7: a1"),
    Bug("a renewal revives an expired lease", renewal_revives, a_renewal_comes_too_late, "leases_are_renewed"),
    Bug(
        "what timed out inside a section is tried again",
        sections_are_forgotten,
        a_run_times_out_inside_a_section,
        "_check_settled",
    ),
    Bug(
        "what was lost inside a section is tried again",
        sections_are_forgotten,
        a_worker_is_lost_inside_a_section,
        "_check_settled",
    ),
    Bug(
        "who shares a profile may change things",
        sharers_may_change_things,
        a_sharer_wants_to_change_something,
        "the model says Conflict",
    ),
    Bug("more share a profile than it allows", sharers_are_not_counted, three_want_to_share, "j3 is queued"),
    Bug(
        "a job that is given back loses an attempt", giving_back_costs_an_attempt, a_job_is_given_back, "_compare_jobs"
    ),
    Bug(
        "leases from before a stricter routing are not counted",
        only_the_same_key_counts,
        an_account_is_routed_as_one_while_it_is_in_use,
        "granted ['j2']",
    ),
    Bug("a clock that jumps ends all leases", a_jump_is_believed, the_clock_jumps_by_an_hour, "_compare_leases"),
    Bug(
        "what is settled and claimed at once is claimed from lanes as they were",
        lanes_are_taken_as_they_were,
        a_sharer_meets_a_prompt_while_the_next_one_comes,
        "but next is one of []",
        POSTGRES,
    ),
    Bug(
        "capacity is counted before the pool is locked",
        the_pool_is_counted_first,
        raced(a_fleet(2, limit=1), a_job("p1"), a_job("p2"), after="pool_leases", race=_two_claims),
        "I1: pool default",
        POSTGRES,
    ),
    Bug(
        "an account's leases are counted before it is locked",
        the_account_is_counted_first,
        raced(a_fleet(2, routing=Routing.ACCOUNT), a_job("p1"), a_job("p2"), after="account_keys", race=_two_claims),
        "I1: key account:shop",
        POSTGRES,
    ),
    Bug(
        "a lane is locked and its jobs are read in one snapshot",
        lock_and_jobs_are_one_snapshot,
        raced(a_fleet(), a_job(), a_job(), after="heads", race=_a_claim_and_a_whole_run),
        "I5: job",
        POSTGRES,
    ),
    Bug(
        "a run is looked at before its profile is locked, and ends twice",
        facts_are_read_before_the_lock,
        raced(a_fleet(), a_job(), after="moving_runs", race=_two_endings_of_one_run),
        "I5: job",
        POSTGRES,
    ),
    Bug(
        "an unexplained ending is looked at before its profile is locked, and is resolved twice",
        facts_are_read_before_the_lock,
        raced(a_fleet(), a_job(), after="open_runs", race=_two_resolutions),
        "I5: p1:1 was answered 2 times as the answer to resolve",
        POSTGRES,
    ),
    Bug(
        "sweepers do not lock what they expire",
        sweepers_do_not_lock,
        raced(a_fleet(), a_job(), after="lock_lanes_free", race=_two_sweeps),
        "I5: p1:1 was answered 2 times as the answer to expire",
        POSTGRES,
    ),
    Bug(
        "an idempotency key is looked up, and nothing makes it unique",
        keys_are_not_unique,
        raced(a_fleet(2), after="jobs_by_id", race=_two_submits_of_one_key),
        "I8: key k",
        POSTGRES,
    ),
    Bug("a lost commit is done again", a_lost_commit_is_done_again, a_claim_loses_its_answer, "I4: worker", POSTGRES),
    Bug("a lost commit is believed", a_lost_commit_is_believed, a_submit_does_not_arrive, "I4: job", POSTGRES),
    Bug(
        "a commit on Redis compares nothing",
        commits_compare_nothing,
        raced(a_fleet(2, limit=1), a_job("p1"), a_job("p2"), after="pool_leases", race=_two_claims),
        "I1: pool default",
        REDIS,
    ),
    Bug(
        "a commit on Redis compares nothing, and an account's key is given twice",
        commits_compare_nothing,
        raced(a_fleet(2, routing=Routing.ACCOUNT), a_job("p1"), a_job("p2"), after="account_keys", race=_two_claims),
        "I1: key account:shop",
        REDIS,
    ),
    Bug(
        "a lock on Redis leaves no trace",
        locks_leave_no_trace,
        raced(a_fleet(2, limit=1), a_job("p1"), a_job("p2"), after="pool_leases", race=_two_claims),
        "I1: pool default",
        REDIS,
    ),
    Bug(
        "a run ends twice on Redis",
        commits_compare_nothing,
        raced(a_fleet(), a_job(), after="lock_lanes", race=_two_endings_of_one_run),
        "I5: job",
        REDIS,
    ),
    Bug(
        "unique values are not compared on Redis",
        unique_values_are_not_compared,
        raced(a_fleet(2), after="jobs_by_id", race=_two_submits_of_one_key),
        "I8: key k",
        REDIS,
    ),
    Bug(
        "a lost commit on Redis is done again",
        a_lost_commit_on_redis_is_done_again,
        a_claim_loses_its_answer,
        "I4: worker",
        REDIS,
    ),
    Bug(
        "a lost commit on Redis is believed",
        a_lost_commit_on_redis_is_believed,
        a_submit_does_not_arrive,
        "I4: job",
        REDIS,
    ),
)
