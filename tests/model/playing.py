"""Playing histories on a real store: one store and one loop for all of them, its tables emptied before each."""

import asyncio
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.stateful import get_state_machine_test

from leasekeeper.stores import migrate, open_store
from tests.model.calls import Clock
from tests.model.machine import Machine
from tests.postgres_store import KEPT, EmptiedPostgres
from tests.redis_store import empty_redis

STEPS = 40
TIME_RUNS = "UPDATE fleet_lock SET expiry_resumes_at = 0"

NewMachine = Callable[[], Machine]


@contextmanager
def emptying(url: str) -> Iterator[Callable[[], object]]:
    """Gives what makes the store as new as it was after its migration."""
    if url.startswith("sqlite"):
        yield partial(_empty_sqlite, Path(url.removeprefix("sqlite:///")))
    elif url.startswith("redis"):
        yield partial(empty_redis, url)
    else:
        with closing(EmptiedPostgres(url)) as database:
            yield database.emptied


def _empty_sqlite(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        for (table,) in found.fetchall():
            if table not in KEPT:
                connection.execute(f"DELETE FROM {table}")  # noqa: S608 - the names are the schema's own
        connection.execute(TIME_RUNS)
    connection.close()


class Jitter:
    """The chance by which a store spreads retries: the same in each history, so that a history can be repeated."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.begin()

    def begin(self) -> None:
        self._chance = random.Random(self._seed)

    def __call__(self) -> float:
        return self._chance.random()


@contextmanager
def machines(url: str, seed: int = 0) -> Iterator[NewMachine]:
    """Gives machines on this store, each with the store empty."""
    with asyncio.Runner() as runner:
        loop, clock, jitter = runner.get_loop(), Clock(), Jitter(seed)
        runner.run(migrate(url))
        store = runner.run(open_store(url, clock=clock, jitter=jitter))
        with emptying(url) as empty:

            def machine() -> Machine:
                empty()
                jitter.begin()
                return Machine(store, clock, loop)

            try:
                yield machine
            finally:
                runner.run(store.close())


def play(url: str, *, examples: int, seed: int | None = None, shrink: bool = True) -> None:
    """Histories of a fixed number of steps: without a seed the same ones every time, with one those of the seed."""
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=seed is None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
    )
    with machines(url, seed or 0) as machine:
        test = get_state_machine_test(machine, settings=settings)  # type: ignore[arg-type]  # it also takes factories
        if seed is not None:
            test = hypothesis.seed(seed)(test)
        test()
