"""Why a queued job waits: lists, filters and counts of every store say what `core.readiness` says, for every
combination of what may keep it waiting."""

from collections import Counter
from dataclasses import dataclass
from itertools import product
from typing import Final

from leasekeeper.core.decisions import Action
from leasekeeper.core.jobs import Job
from leasekeeper.core.profiles import Profile
from leasekeeper.core.readiness import Blocked, WaitFacts, shown_reason
from tests.conformance.test_snapshots import saved_by, stored
from tests.conformance.world import NewWorld, World, limit, profile, spec

# Pools by what is true of them: paused by a person, and full.
POOLS: Final = {"free": (False, False), "full": (False, True), "paused": (True, False), "shut": (True, True)}
OLD, NEW = 100, 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One profile with one job. `task`: `visit`, which a live worker offers, or `quit`, which none offers any more.
    `engine`: of the browser that opened it last. `machine`: which has its directory. `saved`: so has the profile store.
    """

    pool: str
    task: str
    engine: int
    machine: str | None
    saved: bool
    locked: bool

    @property
    def profile_id(self) -> str:
        return f"{self.pool}-{self.task}-{self.engine}-{self.machine}-{self.saved}-{self.locked}"

    @property
    def facts(self) -> WaitFacts:
        paused, full = POOLS[self.pool]
        return WaitFacts(
            lane_blocked_by=Blocked.PROFILE_STATE if self.locked else None,
            paused=paused,
            full=full,
            unserved=self.task == "quit" or self.engine == NEW,
            away=self.machine is not None and not self.saved,
        )


CASES: Final = [
    Case(pool=pool, task=task, engine=engine, machine=machine, saved=saved, locked=locked)
    for pool, task, engine, (machine, saved), locked in product(
        POOLS, ("visit", "quit"), (OLD, NEW), ((None, False), ("rack2", False), ("rack2", True)), (False, True)
    )
    if pool == "free" or not saved
]


async def prepare(world: World) -> dict[str, Case]:
    """Each profile was opened once, by its browser and on its machine. Returns the cases by the job that waits."""
    await stored(world)
    for pool in POOLS:
        for name, task, stopping in (("stays", "visit", False), ("leaves", "quit", False), ("leaves", "quit", True)):
            who = {"worker_id": name, "incarnation": f"{name}-{pool}"}
            await world.offer(task, pool=pool, machine="rack1", engine=OLD, stopping=stopping, **who)
        for machine in (None, "rack2"):
            here = {case.profile_id: case for case in CASES if (case.pool, case.machine) == (pool, machine)}
            await world.submit(*map(spec, here))
            grants = await world.claim(len(here), pool=pool, machine=machine)
            assert {grant.lease.profile_id for grant in grants} == set(here)
            for grant in grants:
                case = here[grant.lease.profile_id]
                if case.saved:
                    await saved_by(world, grant, engine=case.engine)
                else:
                    await world.finish(grant, engine=case.engine)
    jobs = await world.submit(*(spec(case.profile_id, case.task) for case in CASES))
    for case in CASES:
        if case.locked:
            await world.decide_profile(Action.QUARANTINE, case.profile_id)
    for pool, (paused, full) in POOLS.items():
        if full:
            await world.declare(limit(pool, 1))
            await world.acquire(f"{pool}-busy")
        if paused:
            await world.pause(f"pool:{pool}")
    return {job.job_id: case for job, case in zip(jobs, CASES, strict=True)}


async def test_a_store_shows_the_reason_that_the_rule_gives(new_world: NewWorld) -> None:
    profiles: list[Profile] = [profile(case.profile_id, pool=case.pool) for case in CASES]
    busy = [profile(f"{pool}-busy", pool=pool) for pool in POOLS]
    async with new_world(*profiles, *busy) as world:
        cases = await prepare(world)
        expected = {job_id: shown_reason(case.facts) for job_id, case in cases.items()}
        assert set(expected.values()) == {
            None, Blocked.PROFILE_STATE, Blocked.PAUSE, Blocked.CAPACITY, Blocked.NO_WORKER, Blocked.HOME
        }  # fmt: skip
        waiting = {job.job_id: job for job in await world.all(Job) if job.job_id in cases}
        assert {job_id: job.blocked_reason for job_id, job in waiting.items()} == expected
        for reason in Blocked:
            found = {job.job_id for job in await world.all(Job, blocked_reason=reason)}
            assert found == {job_id for job_id, shown in expected.items() if shown == reason}, reason
        for state in ("queued", "blocked"):
            found = {job.job_id for job in await world.all(Job, state=state)}
            assert found == {job_id for job_id, shown in expected.items() if (shown is None) == (state == "queued")}
        stats = await world.store.stats()
        assert stats.blocked == Counter(shown for shown in expected.values() if shown is not None)
        assert stats.jobs["queued"] == sum(shown is None for shown in expected.values())
