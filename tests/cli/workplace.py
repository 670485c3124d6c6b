"""What the tests of the command line share: running it, and bringing a real store into a state to look at."""

import asyncio
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from click.testing import CliRunner, Result

from leasekeeper.cli import cli
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.policy import Policy
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.core.workers import WorkerReport
from leasekeeper.ports import ClaimRequest, Grant, LeaseRequest, Settled, Store
from leasekeeper.stores import open_store

T = TypeVar("T")

SECONDS_TO_ANSWER = 60

FLEET = """\
proxies:
  us-1: {server: "http://proxy.example:8080", region: US}
accounts:
  shop_us: {}
  shop_de: {notes: the quiet one}
  twins: {routing: account}
profiles:
  shop_us_main: {account: shop_us, proxy: us-1, language: en-US}
  shop_de_main: {account: shop_de}
  twin_a: {account: twins}
  twin_b: {account: twins}
limits:
  default: 10
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """A store and the command line in front of it."""

    url: str
    directory: Path

    def cli(self, *arguments: str, stdin: str | None = None, env: Mapping[str, str] | None = None) -> Result:
        """Run a command in this process; its streams are no terminal."""
        return CliRunner().invoke(cli, ["--store", self.url, *arguments], input=stdin, env=env)

    def text(self, *arguments: str, stdin: str | None = None) -> str:
        """The answer for people of a command that must succeed."""
        result = self.cli(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str, stdin: str | None = None) -> Any:
        """The answer for programs of a command that must succeed."""
        return json.loads(self.text(*arguments, "--json", stdin=stdin))

    def fails(self, code: int, *arguments: str, stdin: str | None = None) -> str:
        """What a command says that must fail with this code. Nothing on stdout, no traceback anywhere."""
        result = self.cli(*arguments, stdin=stdin)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        assert result.stderr.startswith("leasekeeper: ")
        assert "Traceback" not in result.stderr
        as_json = self.cli(*arguments, "--json", stdin=stdin)
        error = json.loads(as_json.stderr)["error"]
        assert as_json.exit_code == code
        assert as_json.stdout == ""
        assert error["message"] in result.stderr
        assert error["code"].isupper()
        return result.stderr

    def do(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Something that only a worker or a program would do."""

        async def run() -> T:
            store = await open_store(self.url, policy=Policy())
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def fleet(self, text: str = FLEET) -> str:
        """A fleet file, as an argument."""
        path = self.directory / "fleet.yaml"
        path.write_text(text)
        return str(path)

    def apply(self, text: str = FLEET) -> str:
        return self.text("apply", self.fleet(text), "--yes")

    def start_worker(self, worker: str = "w1", tasks: Sequence[str] = ("buy", "look")) -> None:
        report = WorkerReport(worker_id=WorkerId(worker), incarnation=f"{worker}-1", pool="default", tasks=tuple(tasks))
        self.do(lambda store: store.report(report))

    def submit(self, *arguments: str, task: str = "buy", profile: str = "shop_us_main") -> str:
        """One more job; gives its id."""
        answer = self.json("submit", task, "--profile", profile, *arguments)
        job_id: str = answer["items"][0]["job_id"]
        return job_id

    def claim(self, limit: int = 1, worker: str = "w1") -> list[Grant]:
        request = ClaimRequest(
            worker_id=WorkerId(worker),
            incarnation=f"{worker}-1",
            tasks=("buy", "look"),
            pool="default",
            limit=limit,
        )
        return self.do(lambda store: store.claim(request))

    def lease(self, profile: str) -> Grant:
        request = LeaseRequest(profile_id=ProfileId(profile), worker_id=WorkerId("script"), incarnation="i1")
        return self.do(lambda store: store.acquire(request))

    def end(self, grant: Grant, reason: str | None = None, message: str = "") -> Settled:
        facts = EndFacts(browser=Browser.NONE)
        ending = Ending(ref=grant.lease.ref, reason=reason, message=message, facts=facts)
        return self.do(lambda store: store.settle([ending]))[0]

    def run_one(self, reason: str | None = None, message: str = "") -> Grant:
        """A worker takes the next job and ends it."""
        (grant,) = self.claim()
        settled = self.end(grant, reason, message)
        assert settled.refused is None
        return grant

    def dead_job(self, profile: str = "shop_us_main") -> str:
        """A job that used up its only attempt."""
        document = {"task": "buy", "profile_id": profile, "max_attempts": 1}
        answer = self.json("submit", "--file", "-", stdin=json.dumps(document))
        self.run_one("TIMEOUT", "the page did not answer")
        job_id: str = answer["items"][0]["job_id"]
        return job_id

    def reviewed_profile(self) -> str:
        """The job whose run ended at a login page: job and profile wait for a person."""
        job_id = self.submit()
        self.run_one("LOGIN_REQUIRED", "the session is over")
        return job_id


def process(
    *arguments: str, url: str | None = None, directory: Path | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """The command line as a process of its own, without a terminal."""
    return subprocess.run(
        [*program(), *arguments],
        env=environment(url),
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=SECONDS_TO_ANSWER,
        check=False,
        **options,
    )


def program() -> list[str]:
    return [sys.executable, "-c", "from leasekeeper.cli import main; main()"]


def environment(url: str | None = None, **more: str) -> dict[str, str]:
    dropped = {"COLUMNS", "LINES", "NO_COLOR", "LEASEKEEPER_STORE"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {"TERM": "xterm"} | ({"LEASEKEEPER_STORE": url} if url else {}) | more


def in_terminal(
    *arguments: str,
    url: str,
    columns: int = 80,
    typed: str = "",
    type_at: str = "",
    interrupt_at: str | None = None,
    **env: str,
) -> tuple[int, str]:
    """The command line on a terminal of this width: its exit code, and what was on the screen.

    `typed` is what a person answers, once they see the text `type_at`; at `interrupt_at` they press Ctrl-C.
    """
    keyboard, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    child = subprocess.Popen(
        [*program(), *arguments],
        env=environment(url, **env),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    seen = b""
    if not type_at:
        os.write(keyboard, typed.encode())
    try:
        while select.select([keyboard], [], [], SECONDS_TO_ANSWER)[0]:
            with suppress(OSError):  # the terminal is gone when the process is
                part = os.read(keyboard, 65536)
                seen += part
                if type_at and type_at.encode() in seen:
                    os.write(keyboard, typed.encode())
                    type_at = ""
                if interrupt_at and interrupt_at.encode() in seen:
                    child.send_signal(signal.SIGINT)
                    interrupt_at = None
                if part:
                    continue
            break
        return child.wait(SECONDS_TO_ANSWER), seen.decode().replace("\r\n", "\n")
    finally:
        child.kill()
        os.close(keyboard)
