"""Mistakes that other queues have made, each put into the store of this process."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import psycopg
import pytest

from leasekeeper.core import granting, lanes, readiness
from leasekeeper.core import settle as endings
from leasekeeper.core.ids import Token
from leasekeeper.core.leases import lease_id_of
from leasekeeper.core.profiles import Because, ProfileState
from leasekeeper.core.records import evolve
from leasekeeper.core.settle import Ending
from leasekeeper.stores import migrate
from leasekeeper.stores.postgres import engine as postgres
from leasekeeper.stores.postgres.pipeline import Statement
from leasekeeper.stores.postgres.transaction import STATEMENTS, PostgresTx
from leasekeeper.stores.redis import records
from leasekeeper.stores.redis.engine import RedisEngine
from leasekeeper.stores.redis.records import Records
from leasekeeper.stores.sql import claiming, heartbeats, revoking, settling
from leasekeeper.stores.sql import lanes as locked_lanes
from leasekeeper.stores.sql.statements import for_one, for_postgres

Mistake = Callable[[pytest.MonkeyPatch], None]
LONG_AGO: Final = datetime(2000, 1, 1, tzinfo=UTC)


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

    def freed(_facts: Any, why: Because, now: datetime) -> lanes.Changes:
        return {"state": ProfileState.AVAILABLE, **lanes.explained(why), "state_at": now}

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
