"""Real processes on real stores, killed, stopped and cut off; their logs are judged by the checker.

What each test waits for is the end of the work, not a time: faults come for a while, then the queue must drain.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from leasekeeper.core.accounts import Routing
from tests.chaos.arena import Arena, contents_of, prepare
from tests.chaos.rounds import FAULTS, fleet, jobs, judge, ops, start_everybody, workers_die
from tests.chaos.wire import Wire
from tests.redis_store import redis_server
from tests.servers import new_database, postgres_server

KEYS = 200
SUBMIT_SECONDS = 240

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    """One test on each store."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def test_eight_workers_are_killed_and_stopped_and_nothing_is_lost_or_done_twice(url: str, tmp_path: Path) -> None:
    seen = workers_die(url, tmp_path, 1, everything=fleet(12), count=200, faults=FAULTS)
    assert seen["killed"] > 0
    assert seen["stopped"] > 0
    assert seen["settle accepted"] > 80
    assert seen["renew refused"] + seen["settle refused"] + seen["checkpoint refused"] > 0, "no late write was tried"


def test_account_keys_and_pool_limits_hold_while_workers_die(url: str, tmp_path: Path) -> None:
    everything = fleet(12, accounts=5, routing=Routing.ACCOUNT, vendor=2)
    seen = workers_die(url, tmp_path, 2, everything=everything, count=120, faults=FAULTS // 2)
    assert seen["settle accepted"] > 50


def test_a_full_pool_stays_full_however_many_want_its_last_place(url: str, tmp_path: Path) -> None:
    everything = fleet(24, accounts=24, vendor=2)
    specs = [replace(job, pool="vendor") for job in jobs(150, 24, seed=6)]
    asyncio.run(prepare(url, everything, specs))
    with Arena(url, tmp_path, seed=6) as arena:
        start_everybody(arena, pools=("vendor",), longest=0.0)
        judge(arena, url, everything, least=150)
    assert ops(arena)["settle accepted"] >= 150


def test_one_key_is_one_job_however_many_submit_it(url: str, tmp_path: Path) -> None:
    everything = fleet(6)
    asyncio.run(prepare(url, everything))
    specs = [{"task": "buy", "profile_id": f"p{n % 6}", "idempotency_key": f"k{n}"} for n in range(KEYS)]
    other = [{**spec, "priority": 1, "profile_id": "p0"} for spec in specs[:10]]
    begin = tmp_path / "begin"
    with Arena(url, tmp_path, seed=3) as arena:
        for n in range(8):
            arena.start("submitter", specs=tuple([*specs, *other] if n == 0 else specs), begin=str(begin))
        arena.wait_for_everybody(to_call=False)
        begin.touch()
        arena.wait_for_everybody()
        for who in arena.random.sample(list(arena.clients), 2):
            arena.replace(who)
        for who in list(arena.clients):
            assert arena.clients[who][1].wait(SUBMIT_SECONDS) == 0
        arena.clients.clear()
        contents = asyncio.run(contents_of(url))
        assert arena.verdict(contents, {}) == []
    assert sorted(job["key"] for job in contents.jobs) == sorted(f"k{n}" for n in range(KEYS))
    assert ops(arena)["submit accepted"] > 100


@dataclass
class Own:
    """A server that a test may kill, and its store."""

    url: str
    address: str
    crash: Callable[[], None]

    def through(self, wire: Wire) -> str:
        """The store's URL by way of a wire."""
        if self.url.startswith("redis"):
            return f"redis://127.0.0.1:{wire.port}"
        return wire.url(str(conninfo_to_dict(self.url)["dbname"]))


@contextmanager
def own_server(kind: str) -> Iterator[Own]:
    if kind == "redis":
        with redis_server(Path("/tmp")) as redis:  # noqa: S108 - mkdtemp makes a private directory there
            yield Own(redis.url, str(redis.socket), lambda: in_turn(redis.kill, redis.start))
    else:
        with postgres_server() as server:
            yield Own(new_database(server), server.address, lambda: in_turn(server.stop, server.start))


def in_turn(*steps: Callable[[], None]) -> None:
    for step in steps:
        step()


# Daily, `tests/stores/test_redis_load.py` kills a Redis under load, and `test_redis_server.py` loses the answers of its
# commits.
with_server = pytest.mark.parametrize("kind", ["postgres", pytest.param("redis", marks=pytest.mark.release)])


def marked(who: int, count: int, profiles: int) -> Sequence[dict[str, Any]]:
    """Jobs without a key, each with a mark by which a second copy of it would be seen."""
    return tuple(
        {"task": "buy", "profile_id": f"p{n % profiles}", "notes": f"mark {who}-{n}", "max_attempts": 4}
        for n in range(count)
    )


@with_server
def test_a_server_that_crashes_in_the_middle_loses_nothing(kind: str, tmp_path: Path) -> None:
    everything = fleet(12)
    with own_server(kind) as server:
        url = server.url
        asyncio.run(prepare(url, everything, jobs(100, 12, seed=4)))
        with Arena(url, tmp_path, seed=4) as arena:
            start_everybody(arena)
            for n in range(2):
                arena.start("submitter", specs=marked(n, 60, 12))
            arena.wait_for_everybody()
            for _ in range(2):
                arena.torment(5)
                server.crash()
            contents = judge(arena, url, everything, least=101)
            seen = ops(arena)
    assert seen["claim open"] + seen["settle open"] + seen["renew open"] > 0, "nobody noticed the crash"
    assert seen["settle accepted"] > 50
    assert len(contents.jobs) > 100


@with_server
def test_connections_that_are_cut_and_answers_that_are_lost_are_found_out(kind: str, tmp_path: Path) -> None:
    everything = fleet(12)
    with own_server(kind) as server, Wire(server.address, seed=5) as wire:
        url = server.url
        asyncio.run(prepare(url, everything, jobs(100, 12, seed=5)))
        with Arena(url, tmp_path, seed=5, client_url=server.through(wire)) as arena:
            start_everybody(arena)
            for n in range(2):
                arena.start("submitter", specs=marked(n, 80, 12))
            arena.wait_for_everybody()
            arena.torment(FAULTS, wire.cut, wire.swallow, wire.swallow, wire.drop, wire.drop)
            contents = judge(arena, url, everything, least=101)
            seen = ops(arena)
    assert wire.cuts > 5
    assert seen["settle accepted"] > 50
    assert len(contents.jobs) > 100
