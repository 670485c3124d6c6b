"""One suite, every store: `new_world` comes once for each of them, on an empty store of its own.

Some thousand stores are made here, so making one is cheap: a copy of a migrated file, or a migrated database that is
emptied again. Nothing here tests what survives a power loss, so they lie in memory where there is room.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from leasekeeper.stores import migrate
from tests.conformance.audit import audit
from tests.conformance.places import Place, ServedPlace
from tests.conformance.world import NewWorld, new_world
from tests.redis_store import DurableRedis, redis_server
from tests.servers import new_database, postgres_server

MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a private directory there
ENOUGH_BYTES = 2 * 1024**3
KEPT = {"schema_version", "fleet_lock"}


@pytest.fixture(scope="session")
def fast_dir() -> Iterator[Path]:
    """A directory in memory, if the machine has one with room, else an ordinary one."""
    roomy = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH_BYTES
    directory = Path(tempfile.mkdtemp(prefix="lk-conf-", dir=MEMORY if roomy else None))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def sqlite_template(fast_dir: Path) -> Path:
    """A migrated file, to be copied."""
    file = fast_dir / "template.db"
    asyncio.run(migrate(f"sqlite:///{file}"))
    return file


@pytest.fixture(scope="session")
def postgres_database(fast_dir: Path) -> Iterator[str]:
    """A migrated database, to be emptied before each use."""
    with postgres_server(parent=fast_dir) as server:
        url = new_database(server)
        asyncio.run(migrate(url))
        yield url


def empty(url: str) -> None:
    """Make the database as new as it was after its migration."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'leasekeeper'").fetchall()
        tables = [sql.Identifier("leasekeeper", name) for (name,) in found if name not in KEPT]
        connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(sql.SQL(", ").join(tables)))
        connection.execute("UPDATE leasekeeper.fleet_lock SET expiry_resumes_at = 0")


@pytest.fixture
def sqlite_file_url(sqlite_template: Path, fast_dir: Path) -> Iterator[str]:
    """The URL of an empty SQLite store."""
    with tempfile.TemporaryDirectory(dir=fast_dir) as directory:
        file = shutil.copyfile(sqlite_template, Path(directory, "leasekeeper.db"))
        yield f"sqlite:///{file}"


@pytest.fixture
def emptied_postgres_url(postgres_database: str) -> str:
    """The URL of an empty PostgreSQL store."""
    empty(postgres_database)
    return postgres_database


@pytest.fixture(scope="session")
def redis_store_server(fast_dir: Path) -> Iterator[DurableRedis]:
    """A Redis that waits for the disk, to be emptied before each use."""
    with redis_server(fast_dir) as server:
        yield server


@pytest.fixture
def emptied_redis_url(redis_store_server: DurableRedis) -> str:
    """The URL of an empty Redis store."""
    return redis_store_server.emptied()


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
