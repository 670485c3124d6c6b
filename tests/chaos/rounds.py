"""Parts of a chaos round: a fleet and its jobs, everybody who works on them, and the judgement at the end.

What a round waits for is the end of the work, not a time: faults come for a while, then the queue must drain.
"""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

from leasekeeper.core.accounts import Account, Limit, Routing
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, ProfileId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.leases import Mode
from leasekeeper.core.profiles import Profile, ReleasePolicy
from tests.chaos.arena import Arena, contents_of, prepare
from tests.chaos.checker import Contents

WORKERS = 8
SWEEPERS = 2
FAULTS = 20


def fleet(profiles: int, *, accounts: int = 3, routing: Routing = Routing.PROFILE, **limits: int) -> Fleet:
    """Profiles p0, p1, … spread over accounts a0, a1, …; every third one can be shared by two."""
    return Fleet(
        accounts={f"a{n}": Account(account_id=AccountId(f"a{n}"), routing=routing) for n in range(accounts)},
        profiles={
            f"p{n}": Profile(
                profile_id=ProfileId(f"p{n}"),
                account_id=AccountId(f"a{n % accounts}"),
                pool="vendor" if limits and n % 2 else "default",
                max_active_runs=2 if n % 3 == 0 else 1,
                release_policy=ReleasePolicy.RECOVER,
            )
            for n in range(profiles)
        },
        limits={pool: Limit(pool=pool, max_leases=limit) for pool, limit in limits.items()},
    )


def jobs(count: int, profiles: int, seed: int) -> list[JobSpec]:
    """Jobs for random profiles, some of which may share, some more urgent."""
    chosen = random.Random(seed)
    return [
        JobSpec(
            task="buy",
            profile_id=ProfileId(f"p{chosen.randrange(profiles)}"),
            mode=chosen.choice([Mode.EXCLUSIVE, Mode.SHARED]),
            priority=chosen.choice([0, 0, 5]),
            max_attempts=4,
        )
        for _ in range(count)
    ]


def limits_of(fleet: Fleet) -> dict[str, int]:
    """What the checker is given: how many may hold each thing."""
    found = {f"profile {name}": profile.max_active_runs for name, profile in fleet.profiles.items()}
    found |= {f"pool {pool}": limit.max_leases for pool, limit in fleet.limits.items()}
    found |= {f"key account:{name}": 1 for name in fleet.accounts}
    return found


def judge(arena: Arena, url: str, fleet: Fleet, *, least: int = 0) -> Contents:
    """Let the work end, end the clients, and ask the checker."""
    asyncio.run(arena.drain(least))
    arena.end()
    contents = asyncio.run(contents_of(url))
    assert arena.verdict(contents, limits_of(fleet)) == []
    return contents


def start_everybody(arena: Arena, **orders: Any) -> None:
    for _ in range(WORKERS):
        arena.start("worker", **orders)
    for _ in range(SWEEPERS):
        arena.start("sweeper")
    arena.wait_for_everybody()


def ops(arena: Arena) -> Counter[str]:
    """How often each call was accepted or refused: a run in which nothing happened proves nothing."""
    return Counter(
        f"{call.op} {'accepted' if call.accepted else 'refused' if call.refused else 'open'}"
        for call in arena.history()
    )


def workers_die(url: str, directory: Path, seed: int, *, everything: Fleet, count: int, faults: int) -> Counter[str]:
    """One round on an empty store: workers are killed and stopped while they work. How often each call was made, and
    each fault."""
    asyncio.run(prepare(url, everything, jobs(count, len(everything.profiles), seed)))
    with Arena(url, directory, seed=seed) as arena:
        start_everybody(arena, pools=("default", "vendor"))
        arena.torment(faults)
        contents = judge(arena, url, everything, least=count)
        seen = ops(arena) + arena.counts
    assert len(contents.jobs) == count
    return seen
