"""A stage for keeper tests: a site that counts, a profile directory, real browsers behind real keepers.

It looks at processes by itself, through /proc: it must not believe the code under test.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from playwright.async_api import BrowserContext, async_playwright

from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.browsers.keeper_program import write_wrapper
from leasekeeper.browsers.keeper_reports import read_report
from leasekeeper.core.browsers import BrowserReport

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
    "--disable-gpu",
]
PATIENCE = 100.0
T = TypeVar("T")


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def eventually(look: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Look until there is something to see."""
    until = time.monotonic() + patience
    while not (seen := look()):
        assert time.monotonic() < until, f"waited {patience:g} s for: {what}"
        time.sleep(0.02)  # waits: the look at other processes has no event to wait for
    return seen


async def eventually_async(look: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    return await asyncio.to_thread(eventually, look, what, patience)


class Site:
    """A web site on loopback that remembers every request it got, with its time of arrival."""

    def __init__(self) -> None:
        self.requests: list[tuple[float, str]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.requests.append((boot_time(), self.path))
                body = b"<!doctype html><h1>here</h1><button id=go onclick=\"fetch('/act')\">go</button>"
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(OSError):  # a killed browser does not wait for its answer
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def acts(self) -> list[str]:
        return [path for _, path in list(self.requests) if path.startswith("/act")]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Stage:
    """One profile directory and what happens in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = Site()
        self.wrapper = write_wrapper(root / "data")
        self.profile = root / "data" / "profiles" / "shop"
        self.workers: list[subprocess.Popen[str]] = []
        self.foreign: list[subprocess.Popen[str]] = []

    def folder(self, run_id: str = "run_1") -> Path:
        return self.root / "data" / "runs" / run_id

    def orders(self, *, token: int = 1, run_id: str = "run_1", seconds: float = 300.0, **changes: Any) -> Orders:
        deadline = boot_time() + seconds
        given: dict[str, Any] = {
            "browser": CHROMIUM,
            "user_data_dir": str(self.profile),
            "profile_id": "shop",
            "lease_id": f"lease_{token}",
            "token": token,
            "run_id": run_id,
            "folder": str(self.folder(run_id)),
            "deadline": deadline,
            "kill_at": deadline + 60,
            "close_seconds": 30.0,
            "interrupt_seconds": 10.0,
        }
        return Orders(**{**given, **changes})

    @asynccontextmanager
    async def browser(
        self, link: KeeperLink, *flags: str, directory: Path | None = None
    ) -> AsyncIterator[BrowserContext]:
        """A browser of this test's own process, closed at the end whatever became of it."""
        async with async_playwright() as playwright:
            context = await playwright.chromium.launch_persistent_context(
                directory or link.orders.user_data_dir,
                executable_path=self.wrapper,
                args=[*FLAGS, *flags],
                env={**os.environ, **link.env},
                timeout=PATIENCE * 1000,
            )
            try:
                yield context
            finally:
                with suppress(Exception):
                    await context.close()

    async def visit(self, link: KeeperLink, then: Callable[[BrowserContext], Any] | None = None) -> BrowserReport:
        """One ordinary run: open the site, do something, close, and return the keeper's report."""
        async with self.browser(link) as context:
            await context.pages[0].goto(self.site.url)
            if then is not None:
                await then(context)
            await context.close()
        report = await link.ended(PATIENCE)
        link.close()
        assert report is not None
        return report

    def start_worker(self, orders: Orders, **how: Any) -> "Worker":
        """A worker in a process of its own, so that it can be killed; returns once it acts on the page."""
        settings = {
            "orders": {name: value for name, value in orders.fields().items() if name != "worker_pid"},
            "wrapper": str(self.wrapper),
            "flags": FLAGS,
            "url": self.site.url,
            "patience": PATIENCE,
            **how,
        }
        path = self.root / f"worker-{len(self.workers)}.json"
        path.write_text(json.dumps(settings))
        program = Path(__file__).with_name("keeper_worker.py")
        process = subprocess.Popen(
            [sys.executable, str(program), str(path)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.workers.append(process)
        return Worker(process, self)

    def start_foreign(self, command: list[str], stdin: Path = Path("/dev/null")) -> "subprocess.Popen[str]":
        """A program that Leasekeeper knows nothing of, started beside the profile directory."""
        with stdin.open() as given:
            process = subprocess.Popen(
                command,
                stdin=given,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                cwd=self.profile.parent,
            )
        self.foreign.append(process)
        return process

    def report(self, run_id: str = "run_1") -> BrowserReport:
        eventually(lambda: read_report(self.folder(run_id)), "the keeper's report")
        report = read_report(self.folder(run_id))
        assert report is not None
        return report

    def processes(self) -> dict[int, str]:
        """Everything alive that names the profile directory in its command line: keepers, shells, browsers."""
        return {pid: line for pid in pids() if str(self.profile) in (line := command_line(pid))}

    def browsers(self) -> list[int]:
        return [pid for pid, line in self.processes().items() if line.startswith("/usr/lib/chromium/chromium ")]

    def listeners(self) -> list[int]:
        """Browser processes that listen on a TCP port."""
        listening = set()
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with suppress(OSError):
                rows = Path(table).read_text().splitlines()[1:]
                listening |= {f"socket:[{row.split()[9]}]" for row in rows if row.split()[3] == "0A"}
        return [pid for pid in self.processes() if listening & set(open_files(pid).values())]

    def all_gone(self) -> None:
        """No process is left of anything that was started on this directory."""
        eventually(lambda: not self.processes(), f"the end of all processes on {self.profile}")

    def close(self) -> None:
        for process in [*self.workers, *self.foreign]:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.site.close()


class Worker:
    """A worker process that acts on its page again and again, and the processes that hang on it."""

    def __init__(self, process: subprocess.Popen[str], stage: Stage) -> None:
        self.process = process
        self._stage = stage
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the worker ended before it had a browser"
        said = json.loads(line)
        self.keeper: int = said["keeper"]
        self.browser: int = said["browser"]
        self.front = parent_of(self.keeper)
        self.driver = parent_of(self.front)
        eventually(stage.site.acts, "the worker's first act")

    def next_line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


@contextmanager
def stage_in(root: Path) -> Iterator[Stage]:
    stage = Stage(root)
    try:
        yield stage
    finally:
        stage.close()


def pids() -> list[int]:
    return [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and int(entry.name) != os.getpid()
    ]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def environment_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text(errors="replace")


def memory_of(pid: int | None) -> int:
    """Resident bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def open_files(pid: int) -> dict[str, str]:
    found = {}
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found[entry.name] = str(entry.readlink())
    return found


def send(pid: int, *signals: signal.Signals) -> None:
    for number in signals:
        os.kill(pid, number)
