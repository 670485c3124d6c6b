"""What every test may use: coroutine tests, real databases, short directories, Hypothesis' settings.
The examples of a test are the same every time; fresh ones are for a soak.

A test that is `async def` runs in an event loop of its own; set-up that is async belongs into an
`async with` inside the test, so there are no async fixtures.
"""

import asyncio
import inspect
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import wraps
from hashlib import sha256
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers as hypothesis_providers

from leasekeeper.stores import migrate
from tests.postgres_store import EmptiedPostgres
from tests.redis_store import DurableRedis, redis_server
from tests.servers import PostgresServer, S3Server, drop_database, new_database, postgres_server, s3_server

if TYPE_CHECKING:
    from tests.serving import Served, ServerThread

MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes a private directory there
ENOUGH_BYTES = 2 * 1024**3

hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("same")
# Hypothesis also tries constants that it finds in the modules imported so far: then the examples of a test would depend
# on which tests the same process ran before. There is no setting for it.
hypothesis_providers._get_local_constants = lambda: hypothesis_providers._local_constants

# A runner in the background of a shell inherits an ignored Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Files with the longest tests, which go first.
LONG = ("test_many.py", "test_server_killed.py", "test_overdue_browsers.py", "test_faults.py", "test_store_away.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Test processes: twice as many as cores, as half of the time tests wait for deadlines and other programs."""
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS", min(8, 2 * (os.cpu_count() or 1))))


# Parameters that name a store: another database than SQLite, or any behind HTTP.
OTHER_STORE = re.compile(r"(postgres|redis)(_url)?|http-\w+")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--embedded", action="store_true", help="only tests that start neither a server nor a browser")


def needs_more(item: pytest.Item) -> bool:
    """Whether a test asks for a server, by a fixture or as the store among its parameters, or for a browser."""
    if item.get_closest_marker("browser") or any(
        kind in name for kind in ("postgres", "redis", "served") for name in getattr(item, "fixturenames", ())
    ):
        return True
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(name, str) and OTHER_STORE.fullmatch(name) for name in chosen)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what only a release needs. In several processes tests are mixed, always in the same way: those that work
    hard run beside those that wait. The longest go first, so that no process is left alone with one at the end."""
    for item in items:
        for mark in item.iter_markers("release_if"):
            if mark.kwargs["when"](item.callspec.params):  # type: ignore[attr-defined]  # only parametrized tests have the mark
                item.add_marker(pytest.mark.release)
    if config.getoption("embedded"):
        config.hook.pytest_deselected(items=[item for item in items if needs_more(item)])
        items[:] = [item for item in items if not needs_more(item)]
    if "PYTEST_XDIST_WORKER" in os.environ:
        places = {item.nodeid: place_in_mix(item, number) for number, item in enumerate(items)}
        items.sort(key=lambda item: places[item.nodeid])


def place_in_mix(item: pytest.Item, number: int) -> tuple[int, bytes, int]:
    """Long tests first. Tests that share what their module sets up stay together, in their order: a process sets it up
    again for each stretch of them that it runs."""
    name = item.path.name
    mixed = bytes(item.path) if shares_module(item) else item.nodeid.encode()
    return LONG.index(name) if name in LONG else len(LONG), sha256(mixed).digest(), number


def shares_module(item: pytest.Item) -> bool:
    """Whether a test uses a fixture that is set up once for its module."""
    definitions = item._fixtureinfo.name2fixturedefs.values() if hasattr(item, "_fixtureinfo") else ()
    return any(each.scope == "module" for found in definitions for each in found)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Make a coroutine test, also one under Hypothesis' @given, a plain function that pytest can call."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        pyfuncitem.obj = in_own_loop(test)
    elif hypothesis.is_hypothesis_test(test) and inspect.iscoroutinefunction(test.hypothesis.inner_test):
        test.hypothesis.inner_test = in_own_loop(test.hypothesis.inner_test)


def in_own_loop(test: Callable[..., Any]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: object, **fixtures: object) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


@pytest.fixture(scope="session", autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers leave their token in the user's home: not in that of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL per test process, started when the first test asks for it."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """One S3 server per test process, started when the first test asks for it."""
    with s3_server() as server:
        yield server


@pytest.fixture
def bucket_url(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket for this test alone, as the setting `evidence` names it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-the-bucket")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-bucket")
    return s3.url(s3.new_bucket())


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """An empty PostgreSQL database for this test alone."""
    url = new_database(postgres)
    yield url
    drop_database(postgres, url)


@pytest.fixture(scope="session")
def fast_dir() -> Iterator[Path]:
    """A directory in memory, if the machine has one with room, else an ordinary one. The stores below lie there: what
    uses them does not test what survives a power loss, and need not wait for the disk."""
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
def postgres_database(fast_dir: Path) -> Iterator[EmptiedPostgres]:
    """A migrated database, to be emptied before each use."""
    with postgres_server(parent=fast_dir) as server:
        url = new_database(server)
        asyncio.run(migrate(url))
        with closing(EmptiedPostgres(url)) as database:
            yield database


@pytest.fixture
def sqlite_file_url(sqlite_template: Path, fast_dir: Path) -> Iterator[str]:
    """The URL of an empty SQLite store."""
    with tempfile.TemporaryDirectory(dir=fast_dir) as directory:
        file = shutil.copyfile(sqlite_template, Path(directory, "leasekeeper.db"))
        yield f"sqlite:///{file}"


@pytest.fixture
def emptied_postgres_url(postgres_database: EmptiedPostgres) -> str:
    """The URL of an empty PostgreSQL store."""
    return postgres_database.emptied()


@pytest.fixture(scope="session")
def redis_store_server(fast_dir: Path) -> Iterator[DurableRedis]:
    """A Redis that waits for the disk, to be emptied before each use."""
    with redis_server(fast_dir) as server:
        yield server


@pytest.fixture
def emptied_redis_url(redis_store_server: DurableRedis) -> str:
    """The URL of an empty Redis store."""
    return redis_store_server.emptied()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An SQLite file for this test alone; it does not exist yet."""
    return f"sqlite:///{tmp_path}/leasekeeper.db"


@pytest.fixture(scope="session")
def store_redis() -> Iterator[DurableRedis]:
    """A Redis that waits for the disk, for stores."""
    with redis_server(Path("/tmp")) as server:  # noqa: S108 - mkdtemp makes a private directory there
        yield server


@pytest.fixture
def redis_url(store_redis: DurableRedis) -> str:
    """An empty Redis for this test alone."""
    store_redis.call("FLUSHALL")
    return store_redis.url


@pytest.fixture(scope="session")
def migrated_postgres(postgres: PostgresServer) -> str:
    """A migrated database, to be copied: that is quicker than to migrate one for each test."""
    url = new_database(postgres)
    asyncio.run(migrate(url))
    return url


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file, to be copied."""
    file = tmp_path_factory.mktemp("migrated") / "leasekeeper.db"
    asyncio.run(migrate(f"sqlite:///{file}"))
    return file


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty store of each kind, on disk and durable."""
    if request.param == "sqlite":
        url: str = request.getfixturevalue("sqlite_url")
        copyfile(request.getfixturevalue("migrated_sqlite"), url.removeprefix("sqlite:///"))
        yield url
    else:
        postgres = request.getfixturevalue("postgres")
        url = new_database(postgres, like=request.getfixturevalue("migrated_postgres"))
        yield url
        drop_database(postgres, url)


@pytest.fixture(scope="session")
def server() -> "Iterator[ServerThread]":
    """One HTTP server per test process, started when the first test asks for it. It serves any number of stores."""
    from tests.serving import server_thread

    with server_thread() as thread:
        yield thread


@pytest.fixture
def served(server: "ServerThread", sqlite_url: str) -> "Iterator[Served]":
    """An empty SQLite store behind a real server, with an admin token."""
    found = server.serve(sqlite_url)
    yield found
    found.close()


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A private directory whose path is short enough for a unix socket; for files use tmp_path."""
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as directory:
        yield Path(directory)
