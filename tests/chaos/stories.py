"""Histories that lead straight to one mistake of a store, and what a checker or the model finds in them."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from leasekeeper.core.accounts import Account, Proxy, Routing
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, ProfileId, ProxyId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.leases import LeaseStatus, Mode
from leasekeeper.core.profiles import Profile, ReleasePolicy
from leasekeeper.core.settle import Ending, LostFacts
from leasekeeper.errors import LeasekeeperError
from leasekeeper.stores import migrate, open_store
from tests.chaos.stage import FOUND, Stage, a_fleet, a_held_call, a_job, a_lost_commit, a_stage
from tests.model import histories
from tests.model.calls import Clock
from tests.model.machine import Machine

Story = Callable[[str], list[str]]


# Those that the checker judges


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


async def two_claims(stage: Stage) -> Sequence[Awaitable[Any]]:
    return [(await stage.client(who)).claim() for who in ("one", "two")]


async def a_claim_and_a_whole_run(stage: Stage) -> Sequence[Awaitable[Any]]:
    one, two = await stage.client("one"), await stage.client("two")

    async def whole_run() -> None:
        for grant in await two.claim():
            await two.settle(grant)

    return [one.claim(), whole_run()]


async def two_endings_of_one_run(stage: Stage) -> Sequence[Awaitable[Any]]:
    """The worker reports it again, over another connection, as it believes the first to be dead."""
    one, two = await stage.client("one"), await stage.client("two")
    grant = await one.claim_one()
    return [one.settle(grant), two.settle(grant)]


async def two_sweeps(stage: Stage) -> Sequence[Awaitable[Any]]:
    one, two, worker = [await stage.client(who) for who in ("one", "two", "worker")]
    await worker.claim_one()
    stage.pass_time(60)
    return [one.expire(), two.expire()]


async def two_resolutions(stage: Stage) -> Sequence[Awaitable[Any]]:
    one, two, worker = [await stage.client(who) for who in ("one", "two", "worker")]
    grant = await worker.claim_one()
    await worker.checkpoint(grant)
    stage.pass_time(60)
    await one.expire()
    stage.pass_time(15)
    return [one.resolve(grant), two.resolve(grant)]


async def two_submits_of_one_key(stage: Stage) -> Sequence[Awaitable[Any]]:
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


# Those that the model judges


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
