"""One suite, every store: `new_world` comes once for each of them, on an empty store of its own.

Some thousand stores are made here, so making one is cheap: see the stores in memory of `tests/conftest.py`.
"""

import pytest

from tests.conformance.audit import audit
from tests.conformance.places import Place, ServedPlace
from tests.conformance.world import NewWorld, new_world

# Behind the server PostgreSQL is the same store as without it: that HTTP carries every operation, SQLite shows daily.
STORES = [
    "sqlite",
    "postgres",
    "redis",
    "http-sqlite",
    pytest.param("http-postgres", marks=pytest.mark.release),
]


FIXTURES = {"sqlite": "sqlite_file_url", "postgres": "emptied_postgres_url", "redis": "emptied_redis_url"}


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest) -> Place:
    """An empty store, and how it is opened. The only place of the suite that knows which stores there are."""
    through, _, kind = request.param.rpartition("-")
    url: str = request.getfixturevalue(FIXTURES[kind])
    if not through:
        return Place(url=url)
    return ServedPlace.of(request.getfixturevalue("server"), url)


@pytest.fixture
def store_url(place: Place) -> str:
    """The URL of an empty store."""
    return place.url


@pytest.fixture(name="new_world")
def new_world_fixture(place: Place) -> NewWorld:
    """Opens a world on this store; at its end the whole history is audited."""
    return new_world(place, audit)
