"""Histories on every store: the same random ones every time, and those that once failed. Fresh ones: `tests.soak`."""

import pytest

from tests.model.playing import machines, play
from tests.model.regressions import HISTORIES, History

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
