"""What tests of schedules share: firing what is due, and what came of it."""

from datetime import UTC, datetime

from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job
from leasekeeper.core.schedules import Fired, ScheduleState
from leasekeeper.ports import Store
from tests.conformance.world import World

# The world begins on Tuesday, 2031-05-06, 07:08:09 UTC.
EIGHT = datetime(2031, 5, 6, 8, tzinfo=UTC)


async def fire(world: World, store: Store | None = None, limit: int = 1000) -> list[Fired]:
    """Fire until nothing is due."""
    fired: list[Fired] = []
    for _ in range(1000):
        now = await (store or world.store).fire(limit)
        if not now:
            return fired
        fired += now
    raise AssertionError("there is always something due")


async def fire_at(world: World, moment: datetime, limit: int = 1000) -> list[Fired]:
    world.clock.now = moment
    return await fire(world, limit=limit)


async def times(world: World, profile_id: str | None = None) -> list[str]:
    """The times that jobs were made for, oldest first."""
    jobs = await world.all(Job, **({"profile_id": profile_id} if profile_id else {}))
    return sorted(job.labels["schedule_time"] for job in jobs)


async def state(world: World, schedule_id: str = "nightly") -> ScheduleState:
    return await world.store.get(ScheduleState, schedule_id)


async def of_type(world: World, kind: EventType) -> list[Event]:
    return await world.events(type=kind.value)


async def end_all(world: World) -> None:
    """Run whatever waits."""
    while grants := await world.claim(100):
        for grant in grants:
            await world.finish(grant)
