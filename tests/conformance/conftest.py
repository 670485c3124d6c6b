"""One suite, every store: `new_world` comes once for each of them, on an empty store of its own."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from leasehold.stores import migrate
from tests.conformance.audit import audit
from tests.conformance.world import NewWorld, new_world
from tests.servers import PostgresServer, drop_database, new_database


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file, to be copied: cheaper than a migration for each test."""
    file = tmp_path_factory.mktemp("template") / "leasehold.db"
    asyncio.run(migrate(f"sqlite:///{file}"))
    return file


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> sql.Identifier:
    """A migrated database, to be copied."""
    url = new_database(postgres)
    asyncio.run(migrate(url))
    return sql.Identifier(str(conninfo_to_dict(url)["dbname"]))


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store. The only place of the suite that knows which stores there are."""
    if request.param == "sqlite":
        file = tmp_path / "leasehold.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), file)
        yield f"sqlite:///{file}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    template: sql.Identifier = request.getfixturevalue("postgres_template")
    name = f"lh_{tmp_path.name.lower()[:40]}_{abs(hash(tmp_path)) % 10**8}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), template))
    url = server.url(name)
    yield url
    drop_database(server, url)


@pytest.fixture(name="new_world")
def new_world_fixture(store_url: str) -> NewWorld:
    """Opens a world on this store; at its end the whole history is audited."""
    return new_world(store_url, audit)
