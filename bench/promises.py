"""Which promise breaks under which fault: the recipe, procrastinate with `lock`, and our stores, before one judge.

`python -m bench.promises` starts workers of each system, kills them, stops them for longer than a lock lives, lets the
store's clock jump, or loses answers on the wire. What the workers saw is a history, which the chaos arena's checker
judges. Every system has the same jobs, workers, lock lifetime and number of faults; a peer's promises are only those
that it can be asked for: tokens that it does not have are lent by the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import redis
from psycopg.conninfo import conninfo_to_dict

from bench.players import CLOCK, procrastinate_lock
from bench.players.recipe import JOBS, LOCK
from leasekeeper.stores import open_store
from tests.chaos.arena import OPEN_STATES, STOP_SECONDS, Arena, contents_of, prepare
from tests.chaos.checker import Call, Contents, Rules, check
from tests.chaos.client import POLICY, STOPS_AFTER_SECONDS
from tests.chaos.rounds import fleet
from tests.chaos.wire import Wire
from tests.redis_store import DurableRedis, redis_server
from tests.servers import PostgresServer, new_database, postgres_server

PROFILES: Final = 12
WORKERS: Final = 8
SUBMITTERS: Final = 2
JOBS_EACH: Final = 150
FAULTS: Final = 20
JUMP_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 8.0
SUBMIT_SECONDS: Final = 240
OUT: Final = Path("bench/out/promises.json")
FAULT_NAMES: Final = ("kill", "pause", "clock", "lost answer")
PROMISES: Final = {
    "I1": "two holders at once",
    "I3": "late write accepted",
    "I4": "job lost or doubled",
    "I5": "job finished twice",
    "I8": "key became two jobs",
    "stuck": "job never finished",
}


@dataclass
class System(ABC):
    """One system on its store. `address` is the socket that a wire leads to; None: there is no wire."""

    name: str
    player: str
    url: str
    address: str | None = None
    through: Callable[[int], str] = str
    stops_after: float = 1e9
    spawned: tuple[str, ...] = ("worker",) * WORKERS + ("submitter",) * SUBMITTERS

    @abstractmethod
    def prepare(self) -> None:
        """Make its store ready for jobs."""

    @abstractmethod
    def unfinished(self) -> int:
        """How many jobs are on their way."""

    @abstractmethod
    def jump(self, directory: Path, seconds: float) -> None:
        """The store's clock jumps forward."""

    @abstractmethod
    def contents(self, calls: list[Call]) -> Contents:
        """What the store holds when all is over."""


class Ours(System):
    def prepare(self) -> None:
        asyncio.run(prepare(self.url, fleet(PROFILES)))

    def unfinished(self) -> int:
        async def count() -> int:
            store = await open_store(self.url, policy=POLICY)
            try:
                stats = await store.stats()
                return sum(stats.jobs.get(state, 0) for state in OPEN_STATES)
            finally:
                await store.close()

        return asyncio.run(count())

    def jump(self, directory: Path, seconds: float) -> None:
        """Every process reads the store's time through this offset."""
        file = directory / CLOCK
        before = float(file.read_text()) if file.exists() else 0.0
        new = directory / f"{CLOCK}.new"
        new.write_text(str(before + seconds))
        new.replace(file)

    def contents(self, _calls: list[Call]) -> Contents:
        return asyncio.run(contents_of(self.url))


class Recipe(System):
    def _client(self) -> Any:
        return redis.Redis.from_url(self.url, decode_responses=True)

    def prepare(self) -> None:
        self._client().flushall()

    def unfinished(self) -> int:
        return int(self._client().llen(JOBS))

    def jump(self, _directory: Path, seconds: float) -> None:
        """A jump of the server's clock ends each key that much earlier."""
        client = self._client()
        for key in client.scan_iter(match=LOCK + "*"):
            left = client.pttl(key)
            if left > 0:
                client.pexpire(key, max(1, int(left - seconds * 1000)))

    def contents(self, calls: list[Call]) -> Contents:
        """Jobs are in the list, or their webhook came."""
        found = {json.loads(each)["job_id"]: "queued" for each in self._client().lrange(JOBS, 0, -1)}
        found |= {str(call.args["job"]): "completed" for call in calls if call.op == "settle" and call.accepted}
        return Contents(jobs=tuple(_job(name, state) for name, state in found.items()))


class Procrastinate(System):
    def prepare(self) -> None:
        async def apply() -> None:
            async with procrastinate_lock.app_of(self.url, 0).open_async() as app:
                await app.schema_manager.apply_schema_async()

        asyncio.run(apply())

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def unfinished(self) -> int:
        return int(self._rows("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")[0][0])

    def jump(self, _directory: Path, seconds: float) -> None:
        """A jump of the server's clock makes each heartbeat that much older."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "UPDATE procrastinate_workers SET last_heartbeat = last_heartbeat - make_interval(secs => %s)",
                [seconds],
            )

    def contents(self, _calls: list[Call]) -> Contents:
        rows = self._rows("SELECT id::text, status::text, args->>'job' FROM procrastinate_jobs")
        states = {"succeeded": "completed", "failed": "dead"}
        return Contents(jobs=tuple(_job(name, states.get(status, status), key) for name, status, key in rows))


def _job(name: str, state: str, key: str | None = None) -> dict[str, Any]:
    return {"job": name, "state": state, "attempt": 1, "max_attempts": 1_000, "key": key, "mark": None}


class Ring(Arena):
    """An arena with the programs of one system, which remembers who died when."""

    def __init__(self, system: System, directory: Path, seed: int, client_url: str) -> None:
        super().__init__(system.url, directory, seed, client_url=client_url)
        self.program = f"bench.players.{system.player}"
        self.deaths: dict[str, float] = {}
        self.strict = isinstance(system, Ours)

    def end(self) -> None:
        """What a peer's workers say about errors is theirs; ours must have nothing to say."""
        if self.strict:
            super().end()
            return
        self.wake_those_who_slept(all_of_them=True)
        for _, process in self.clients.values():
            process.terminate()
        for _, process in self.clients.values():
            process.wait(STOP_SECONDS)
        self.clients.clear()

    def replace(self, who: str) -> None:
        super().replace(who)
        self.deaths[who] = time.clock_gettime(time.CLOCK_BOOTTIME)

    def calls(self) -> list[Call]:
        """The history. Who was killed let go of what it held."""
        calls = self.history()
        ended = {(call.args["profile"], call.args["token"]) for call in calls if call.op == "settle"}
        for call in list(calls):
            if call.op == "claim" and call.accepted and call.who in self.deaths:
                held = [{name: grant[name] for name in ("profile", "token", "job")} for grant in call.answer]
                gone = [args for args in held if (args["profile"], args["token"]) not in ended]
                calls += [Call(call.who, "settle", args, self.deaths[call.who]) for args in gone]
        return calls


@dataclass
class Outcome:
    """One system under one fault."""

    system: str
    fault: str
    faults: int
    jobs: int
    broken: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)


def play(system: System, fault: str, seed: int) -> Outcome:
    """Work, faults, and the judgement."""
    system.prepare()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lk-promises-")))
        wire = stack.enter_context(Wire(system.address, seed)) if fault == "lost answer" and system.address else None
        ring = stack.enter_context(Ring(system, directory, seed, system.through(wire.port) if wire else system.url))
        for n, role in enumerate(system.spawned):
            ring.start(role, specs=specs(n) if role == "submitter" else (), longest=0.6)
        ring.wait_for_everybody(to_call=False)
        act = {
            "kill": ring.kill_one,
            "pause": ring.stop_one,
            "clock": lambda: system.jump(directory, JUMP_SECONDS),
            "lost answer": lambda: ring.random.choice([wire.swallow, wire.drop])() if wire else None,
        }[fault]
        torment(ring, act)
        left = drained(system, ring)
        ring.end()
        calls = ring.calls()
    contents = system.contents(calls)
    limits = {f"profile {name}": profile.max_active_runs for name, profile in fleet(PROFILES).profiles.items()}
    if not isinstance(system, Ours):
        limits = dict.fromkeys(limits, 1)
    found = check(calls, contents, Rules(stops_after=system.stops_after, limits=limits))
    done = sum(call.op == "settle" and call.accepted for call in calls)
    outcome = Outcome(system.name, fault, FAULTS, done, counted(found), found[:10])
    if left:
        outcome.broken["stuck"] = left
    return outcome


def counted(found: list[str]) -> Counter[str]:
    """Findings by promise. Two holders of one job are two of its profile, and count once."""
    return Counter(each.partition(":")[0] for each in found if not each.startswith("I1: job "))


def specs(submitter: int) -> tuple[dict[str, Any], ...]:
    """One submitter's jobs, each with a name of its own."""
    names = [f"{submitter}-{n}" for n in range(JOBS_EACH)]
    return tuple(
        {
            "task": "buy",
            "profile_id": f"p{n % PROFILES}",
            "notes": name,
            "idempotency_key": name,
            "max_attempts": 20,
        }
        for n, name in enumerate(names)
    )


def torment(ring: Ring, act: Callable[[], None]) -> None:
    for _ in range(FAULTS):
        time.sleep(ring.random.uniform(0.1, 0.5))  # faults come at random moments
        ring.wake_those_who_slept()
        act()
    ring.wake_those_who_slept(all_of_them=True)


def drained(system: System, ring: Ring) -> int:
    """Wait until all is submitted and nothing is on its way, or nothing changes any more. Returns how many are left."""
    for orders, process in list(ring.clients.values()):
        if orders.role == "submitter":
            process.wait(SUBMIT_SECONDS)
    left, since = system.unfinished(), time.monotonic()
    while left and time.monotonic() < since + QUIET_SECONDS:
        time.sleep(0.2)
        before, left = left, system.unfinished()
        if left != before:
            since = time.monotonic()
    return left


def systems(postgres: PostgresServer, durable: DurableRedis, plain: DurableRedis, folder: Path) -> Iterator[System]:
    """All of them, each with an empty store."""

    def new_postgres(kind: type[System], name: str, player: str, **more: Any) -> System:
        url = new_database(postgres)
        database = str(conninfo_to_dict(url)["dbname"])
        through = lambda port: f"postgresql://postgres@127.0.0.1:{port}/{database}"  # noqa: E731 - one line
        return kind(name, player, url, postgres.address, through, **more)

    def by_tcp(port: int) -> str:
        return f"redis://127.0.0.1:{port}"

    sweepers = ("sweeper",) * 2
    staff = System.spawned
    mine: dict[str, Any] = {"stops_after": STOPS_AFTER_SECONDS, "spawned": staff + sweepers}
    plain.call("FLUSHALL")
    yield Recipe("SET NX recipe", "recipe", f"unix://{plain.socket}", str(plain.socket), by_tcp)
    yield new_postgres(Procrastinate, "procrastinate, lock", "procrastinate_lock", spawned=staff + sweepers)
    file = Path(tempfile.mkdtemp(dir=folder)) / "leasekeeper.db"
    yield Ours("Leasekeeper, SQLite", "ours", f"sqlite:///{file}", **mine)
    yield new_postgres(Ours, "Leasekeeper, PostgreSQL", "ours", **mine)
    yield Ours("Leasekeeper, Redis", "ours", durable.emptied(), str(durable.socket), by_tcp, **mine)


def table(outcomes: list[Outcome]) -> str:
    """The table of the documentation."""
    head = ["", "fault", "jobs ended", *PROMISES.values()]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for each in outcomes:
        counts = [str(each.broken[name]) if each.broken[name] else "0" for name in PROMISES]
        lines.append(f"| {' | '.join([each.system, f'{each.faults} × {each.fault}', str(each.jobs), *counts])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.promises", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the same faults at the same moments, nearly")
    parser.add_argument("--fault", choices=FAULT_NAMES, action="append", help="only this one")
    parser.add_argument("--system", help="only those whose name contains this")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lk-promises-")))
        postgres = stack.enter_context(postgres_server())
        durable, plain = (stack.enter_context(redis_server(folder)) for _ in range(2))
        for fault in options.fault or FAULT_NAMES:
            for system in systems(postgres, durable, plain, folder):
                if (options.system or "") not in system.name or (fault == "lost answer" and system.address is None):
                    continue
                outcomes.append(play(system, fault, options.seed))
                print(f"{system.name}, {fault}: {dict(outcomes[-1].broken) or 'nothing broken'}", flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**vars(each), "broken": dict(each.broken)} for each in outcomes]
    OUT.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"\n{table(outcomes)}\n\nwritten to {OUT}")


if __name__ == "__main__":
    main()
