"""Real servers for tests and benchmarks, each private, in a temporary directory, gone at the end.

`with postgres_server() as server:` then `new_database(server)` gives the URL of an empty database.
`with s3_server() as server:` keeps buckets, `with start_redis(directory) as url:` is for benchmarks.
Programs that are missing are an error that says what to install, never a skip. Only processes started
here are ever stopped.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

START_SECONDS = 60


class ServerUnavailable(Exception):
    """A server could not be started; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """One PostgreSQL with a data directory of its own. Durable: fsync stays on, as by default."""

    directory: Path
    programs: Path
    port: int = 5432

    def url(self, database: str = "postgres") -> str:
        """The address of a database, as a user would write it."""
        return f"postgresql://postgres@/{database}?host={self.host}&port={self.port}"

    @property
    def host(self) -> str:
        """The directory of its unix socket; the port is a part of that one's name."""
        return str(self.directory)

    @property
    def address(self) -> str:
        """Its unix socket."""
        return f"{self.host}/.s.PGSQL.{self.port}"

    def start(self) -> None:
        """Start it and return when it accepts connections. Also after `stop`, on the same data."""
        log = self.directory / "log"
        try:
            self.run("pg_ctl", "start", "-D", self.data, "-l", log, "-w", "-t", str(START_SECONDS))
        except ServerUnavailable as error:
            text = log.read_text(errors="replace") if log.exists() else "(no log)"
            raise ServerUnavailable(f"{error}\n{text}") from None

    def stop(self) -> None:
        """Stop it at once, without a checkpoint: what was committed is recovered by `start`."""
        self.run("pg_ctl", "stop", "-D", self.data, "-m", "immediate", "-w", "-t", str(START_SECONDS))

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def run(self, program: str, *arguments: str | Path) -> None:
        """Run one of PostgreSQL's programs as the server's owner: `postgres` if we are root."""
        as_owner = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        command = [*as_owner, str(self.programs / program), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServerUnavailable(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


@contextmanager
def postgres_server(*, parent: Path = Path("/tmp")) -> Iterator[PostgresServer]:  # noqa: S108 - the paths of unix sockets must be short; mkdtemp makes it private
    """A PostgreSQL of one's own, on a unix socket alone: a port would have to be free until the server takes it.

    `parent` may name another place for the data: where /tmp is memory, fsync costs nothing.
    """
    programs = postgres_programs()
    directory = Path(tempfile.mkdtemp(prefix="lk-pg-", dir=parent))
    try:
        if os.geteuid() == 0:
            shutil.chown(directory, "postgres", "postgres")
        server = PostgresServer(directory=directory, programs=programs)
        text = ["-E", "UTF8", "--locale=C"]
        server.run("initdb", "-D", server.data, "-U", "postgres", "-A", "trust", *text, "--no-sync")
        with (server.data / "postgresql.conf").open("a") as settings:
            settings.write(f"unix_socket_directories = '{directory}'\n")
            settings.write("listen_addresses = ''\n")
            settings.write(f"port = {server.port}\n")
        server.start()
        try:
            yield server
        finally:
            if (server.data / "postmaster.pid").exists():
                server.stop()
    finally:
        shutil.rmtree(directory)


def new_database(server: PostgresServer, *, collation: str | None = None, like: str | None = None) -> str:
    """Create a database under a fresh name and return its URL: empty, or a copy of the one at the URL `like`.

    Text sorts by code point, as in SQLite; `collation="en-US"` gives the order that many servers have.
    """
    name = f"lk_{uuid.uuid4().hex[:12]}"
    template = str(conninfo_to_dict(like)["dbname"]) if like else "template0"
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
    if collation:
        statement += sql.SQL(" LOCALE_PROVIDER icu ICU_LOCALE {}").format(sql.Literal(collation))
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(statement)
    return server.url(name)


def drop_database(server: PostgresServer, url: str) -> None:
    """Remove a database that `new_database` made, whoever is still connected to it."""
    name = sql.Identifier(str(conninfo_to_dict(url)["dbname"]))
    give_up_at = time.monotonic() + START_SECONDS
    with psycopg.connect(server.url(), autocommit=True) as connection:
        while True:
            try:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
            except psycopg.errors.ObjectInUse:  # it waits 5 s for those that it asked to go
                if time.monotonic() > give_up_at:
                    raise
            else:
                return


def postgres_programs() -> Path:
    """The directory of initdb and pg_ctl: from PATH, or the newest that Debian's packages put aside."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    installed = list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not installed:
        raise ServerUnavailable("no initdb found: install PostgreSQL (Debian: apt-get install postgresql)")
    return max(installed, key=lambda path: float(path.parts[-3])).parent


@contextmanager
def start_redis(directory: Path) -> Iterator[str]:
    """A Redis with its default settings on a unix socket in `directory`; gives its URL."""
    program = shutil.which("redis-server")
    if program is None:
        raise ServerUnavailable("no redis-server found: install Redis (Debian: apt-get install redis-server)")
    address = directory / "redis.sock"
    arguments = ["--port", "0", "--unixsocket", str(address), "--dir", str(directory)]
    with (directory / "redis.log").open("wb") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log)
    try:
        wait_for_redis(process, address)
        yield f"unix://{address}"
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def wait_for_redis(process: "subprocess.Popen[bytes]", address: Path) -> None:
    """Return when the server answers a ping; raise with its log when it ended or takes too long."""
    give_up_at = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up_at and process.poll() is None:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(address))
                connection.sendall(b"PING\r\n")
                if connection.recv(64).startswith(b"+PONG"):
                    return
        except OSError:
            pass
        time.sleep(0.02)  # waits: a starting server tells nobody that it is ready
    raise ServerUnavailable(f"redis-server did not start:\n{(address.parent / 'redis.log').read_text()}")


@contextmanager
def closed_port() -> Iterator[int]:
    """A loopback port at which nobody listens, and which nobody else gets inside the block."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """An S3 server that keeps everything in memory, with any credentials."""

    endpoint: str

    def request(self, method: str, path: str) -> int:
        """One unsigned request: buckets are made and removed this way."""
        asked = urllib.request.Request(f"{self.endpoint}/{path}", method=method)  # noqa: S310 - our own server
        with urllib.request.urlopen(asked, timeout=START_SECONDS) as answer:  # noqa: S310 - the same
            return int(answer.status)

    def new_bucket(self) -> str:
        """Create an empty bucket under a fresh name."""
        name = f"evidence-{uuid.uuid4().hex[:12]}"
        self.request("PUT", name)
        return name

    def url(self, bucket: str, prefix: str = "runs") -> str:
        """The setting `evidence` for a bucket of this server."""
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region=us-east-1"


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """moto's S3 server on a port of its own choice."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = []
        try:
            for line in process.stdout or ():
                said.append(line)
                if "Running on " in line:
                    break
            else:
                raise ServerUnavailable(f"moto's server did not start:\n{''.join(said)}")
            # What it logs later must not fill the pipe.
            threading.Thread(target=lambda: [None for _ in process.stdout or ()], daemon=True).start()
            yield S3Server(endpoint=said[-1].rpartition("Running on ")[2].strip())
        finally:
            process.terminate()
