"""Registered endpoints: who is told of what, in the same commit, and who is not."""

import pytest

from leasekeeper.core.alerts import Endpoint, EndpointState, NewEndpoint
from leasekeeper.core.decisions import Action, Review, Target
from leasekeeper.core.deliveries import CLOSED, Delivery, DeliveryState
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.policy import Policy
from leasekeeper.core.secrets import SealedSecret, Secret
from leasekeeper.core.workers import Worker, WorkerReport
from leasekeeper.errors import Conflict, IllegalTransition, InputError, NotFound
from tests.conformance.world import NewWorld, World, answered, end, profile, seconds

TTL = seconds(60)
BRISK = Policy(worker_ttl=TTL)


async def add(world: World, endpoint_id: str, *events: str) -> Endpoint:
    return await world.endpoint(endpoint_id, *events)


async def told(world: World, endpoint_id: str) -> list[str]:
    """The types of the messages to an endpoint, oldest first."""
    return [delivery.type for delivery in reversed(await world.all(Delivery, endpoint_id=endpoint_id))]


async def test_an_endpoint_gets_what_it_asked_for_and_nothing_else(new_world: NewWorld) -> None:
    async with new_world(profile("p1"), profile("p2")) as world:
        await add(world, "ops", "profile.quarantined", "job.dead")
        await add(world, "all", "*")
        await add(world, "jobs", "job.*")
        await world.finish(await world.run("p1"))
        assert await told(world, "ops") == []
        assert await told(world, "jobs") == ["job.completed"]
        assert await told(world, "all") == ["job.completed"]
        await world.decide_profile(Action.QUARANTINE, "p2")
        assert await told(world, "ops") == ["profile.quarantined"]
        assert set(await told(world, "all")) == {
            "job.completed", "profile.decided", "profile.quarantined", "review.opened",
        }  # fmt: skip


async def test_a_message_about_a_job_is_the_same_as_for_its_callback(new_world: NewWorld) -> None:
    async with new_world(profile("p1")) as world:
        await add(world, "ops", "job.*")
        grant = await world.run("p1", callback_url="https://hook.test/done")
        await world.finish(grant)
        assert grant.job is not None
        mine, theirs = sorted(
            await world.all(Delivery, job_id=grant.job.job_id), key=lambda each: each.endpoint_id or ""
        )
        assert (mine.endpoint_id, theirs.endpoint_id, theirs.url) == (None, "ops", "https://ops.test/in")
        assert (mine.type, mine.body) == (theirs.type, theirs.body)


async def test_a_lost_lease_and_its_review_are_sent_with_their_ids(new_world: NewWorld) -> None:
    async with new_world(profile("p1")) as world:
        await add(world, "ops", "lease.lost", "review.opened")
        grant = await world.run("p1")
        await world.store.enter_section(grant.lease.ref, "pay")
        await world.lose(grant)
        world.advance(3600)
        await world.resolve(grant)
        lost, opened, *more = reversed(await world.all(Delivery, endpoint_id="ops"))
        assert (lost.type, lost.body["event"], lost.body["run_id"]) == (
            "lease.lost",
            "lease_expired",
            grant.lease.run_id,
        )
        assert (lost.job_id, lost.body["profile_id"]) == (grant.lease.job_id, "p1")
        reviews = {review.review_id for review in await world.all(Review)}
        assert {each.body["review_id"] for each in (opened, *more)} == reviews
        assert {each.type for each in (opened, *more)} == {"review.opened"}


async def test_a_review_that_is_open_already_is_not_sent_again(new_world: NewWorld) -> None:
    async with new_world(profile("p1")) as world:
        await add(world, "ops", "review.opened")
        await world.decide_profile(Action.QUARANTINE)
        await world.decide_profile(Action.REVIEW)
        assert len(await told(world, "ops")) == len(await world.all(Review))


async def test_what_other_processes_add_and_remove_counts_from_the_next_commit(new_world: NewWorld) -> None:
    async with new_world(profile("p1")) as world:
        other = await world.another()
        await world.finish(await world.run("p1"))
        new = NewEndpoint(endpoint_id="ops", url="https://ops.test/", events=("job.*",))
        await other.add_endpoint(new, SealedSecret(name="webhook-ops", key_id="k1", sealed="eA=="), actor="ann")
        await world.finish(await world.run("p1"))
        assert await told(world, "ops") == ["job.completed"]
        await world.decide(Target.ENDPOINT, "ops", Action.REMOVE)
        await world.finish(await world.run("p1"))
        assert await told(world, "ops") == ["job.completed"]


async def test_what_is_refused_leaves_nothing(new_world: NewWorld) -> None:
    async with new_world() as world:
        with pytest.raises(InputError) as caught:
            await add(world, "ops", "profile.quarantine", "nonsense")
        assert "profile.quarantined" in str(caught.value)
        for url in ("ftp://x.test/", "https://ann:pw@x.test/", "x"):
            new = NewEndpoint(endpoint_id="ops", url=url, events=("*",))
            with pytest.raises(InputError):
                await world.store.add_endpoint(
                    new, SealedSecret(name="webhook-ops", key_id="k", sealed="eA=="), actor="ann"
                )
        with pytest.raises(InputError):
            await world.store.add_endpoint(
                NewEndpoint(endpoint_id="ops", url="https://x.test/", events=("*",)),
                SealedSecret(name="another", key_id="k", sealed="eA=="),
                actor="ann",
            )
        assert await world.all(Endpoint) == []
        assert await world.all(Secret) == []
        await add(world, "ops", "*")
        with pytest.raises(Conflict):
            await add(world, "ops", "job.*")


async def test_a_receiver_that_is_gone_is_disabled_and_what_it_was_owed_given_up(new_world: NewWorld) -> None:
    async with new_world() as world:
        await add(world, "ops", "webhook.*")
        await add(world, "other", "webhook.endpoint_disabled")
        for _ in range(2):
            await world.decide(Target.ENDPOINT, "ops", Action.PING)
        first, second = await world.take_deliveries()
        await world.store.settle_deliveries([answered(first, 410)])
        endpoint = await world.store.get(Endpoint, "ops")
        assert (endpoint.state, endpoint.reason) == (EndpointState.DISABLED, "gone")
        (event,) = await world.events(type="endpoint_disabled")
        assert event.data["endpoint_id"] == "ops"
        assert await told(world, "other") == ["webhook.endpoint_disabled"]
        assert await told(world, "ops") == ["webhook.ping", "webhook.ping"]
        await world.store.settle_deliveries([answered(second, 500)])
        world.advance(600)
        assert [each.endpoint_id for each in await world.take_deliveries()] == ["other"]
        given_up = await world.store.get(Delivery, second.delivery_id)
        assert (given_up.state, given_up.answer) == (DeliveryState.EXHAUSTED, CLOSED)
        with pytest.raises(IllegalTransition):
            await world.decide(Target.ENDPOINT, "ops", Action.PING)
        await world.decide(Target.ENDPOINT, "ops", Action.ENABLE)
        assert (await world.decide(Target.ENDPOINT, "ops", Action.PING)).state == "active"


async def test_a_message_about_webhooks_that_is_exhausted_is_no_alert(new_world: NewWorld) -> None:
    async with new_world() as world:
        await add(world, "ops", "*")
        await world.decide(Target.ENDPOINT, "ops", Action.PING)
        (taken,) = await world.take_deliveries()
        await world.store.settle_deliveries([answered(taken, 410)])
        assert await told(world, "ops") == ["webhook.ping"]


async def test_senders_are_given_what_they_can_sign(new_world: NewWorld) -> None:
    async with new_world(profile("p1")) as world:
        owed = await world.owe("https://hook.test/")
        await add(world, "ops", "*")
        await world.decide(Target.ENDPOINT, "ops", Action.PING)
        assert [each.endpoint_id for each in await world.take_deliveries(endpoints=False)] == [None]
        assert [each.endpoint_id for each in await world.take_deliveries(callbacks=False)] == ["ops"]
        assert owed.endpoint_id is None


async def test_the_secret_of_an_endpoint_goes_with_it_and_not_before(new_world: NewWorld) -> None:
    async with new_world() as world:
        await add(world, "ops", "*")
        with pytest.raises(Conflict, match="endpoint ops"):
            await world.store.remove_secret("webhook-ops", actor="ann", note="tidy")
        (sealed,) = await world.store.sealed_secrets(["webhook-ops"])
        assert sealed.sealed == "c2VhbGVk"
        await world.decide(Target.ENDPOINT, "ops", Action.REMOVE)
        assert await world.store.sealed_secrets(["webhook-ops"]) == []
        with pytest.raises(NotFound):
            await world.decide(Target.ENDPOINT, "ops", Action.REMOVE)
        types = [event.type.value for event in await world.events()]
        assert types[-2:] == ["endpoint_added", "endpoint_removed"]


async def test_a_silent_worker_is_noticed_once_for_each_silence(new_world: NewWorld) -> None:
    def report(*, stopping: bool = False) -> WorkerReport:
        return WorkerReport(
            worker_id=WorkerId("w"), incarnation="w-1", pool="default", tasks=("visit",), stopping=stopping
        )

    async with new_world(policy=BRISK) as world:
        await add(world, "ops", "worker.silent", "worker.returned")
        await world.store.report(report())
        world.advance(TTL - seconds(1))
        assert await world.store.mark_silent() == []
        world.advance(1)
        (silent,) = [worker for worker in await world.store.mark_silent() if worker.worker_id == "w"]
        assert (silent.worker_id, silent.silent_since) == ("w", world.now)
        assert silent == await world.store.get(Worker, "w-1")
        assert await world.store.mark_silent() == []
        world.advance(30)
        await world.store.report(report())
        assert (await world.store.get(Worker, "w-1")).silent_since is None
        assert (await told(world, "ops"))[-2:] == ["worker.silent", "worker.returned"]
        (event,) = await world.events(type="worker_returned")
        assert event.data["silent_seconds"] == 30
        await world.store.report(report(stopping=True))
        world.advance(TTL)
        assert await world.store.mark_silent() == []


async def test_a_refused_write_is_an_alert(new_world: NewWorld) -> None:
    async with new_world(profile("p1")) as world:
        await add(world, "ops", "lease.write_rejected")
        grant = await world.run("p1")
        await world.finish(grant)
        await world.store.settle([end(grant.lease.ref)])
        (delivery,) = await world.all(Delivery, endpoint_id="ops")
        assert delivery.body["profile_id"] == "p1"
        assert isinstance(delivery.body["data"], dict)
        assert delivery.body["data"]["token"] == grant.lease.token
