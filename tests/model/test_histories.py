"""Histories on every store: the same random ones every time, and those that once failed. Fresh ones: `tests.soak`."""

from dataclasses import replace
from datetime import datetime

import pytest

from leasekeeper.core.failures import Reason
from tests.model.histories import DONE, TASKS
from tests.model.machine import Machine
from tests.model.playing import machines, play
from tests.model.regressions import HISTORIES, History, fleet, spec

EXAMPLES = {"sqlite": 100, "postgres": 40, "redis": 40}
# Stores in memory: some ten thousand commits, and nobody dies.
URLS = {"sqlite": "sqlite_file_url", "postgres": "emptied_postgres_url", "redis": "emptied_redis_url"}

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("store", EXAMPLES)
def test_a_store_does_what_the_model_does(request: pytest.FixtureRequest, store: str) -> None:
    play(request.getfixturevalue(URLS[store]), examples=EXAMPLES[store])


@pytest.mark.parametrize("store", EXAMPLES)
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_what_once_failed_does_not_fail_again(request: pytest.FixtureRequest, store: str, history: History) -> None:
    with machines(request.getfixturevalue(URLS[store])) as machine:
        history(machine())


def retries_of(machine: Machine) -> list[datetime | None]:
    """When two jobs that failed are tried again."""
    machine.begin(fleet(), [spec("a1"), spec("b1")])
    machine.a_worker_claims("w1", "default", TASKS, 2, False)
    machine.a_worker_settles_and_claims_at_once(
        [(n, replace(DONE, reason=Reason.TIMEOUT)) for n in (0, 1)], "default", 1, False
    )
    return [job.run_at for job in machine.model.jobs.values()]


def test_a_history_spreads_its_retries_the_same_way_each_time(sqlite_file_url: str) -> None:
    spread = []
    for seed in (0, 7):
        with machines(sqlite_file_url, seed) as machine:
            spread.append([retries_of(machine()) for _ in range(2)])
    (first, second), (other, _) = spread
    assert None not in first
    assert len(set(first)) == 2
    assert first == second
    assert first != other
