"""The demo's processes: workers that are started, killed, stopped and continued, and the check that none is left."""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from leasekeeper.demo.jobs import LAPTOP

END_SECONDS: Final = 30.0
GONE_SECONDS: Final = 15.0
# In the environment of every worker and its Playwright processes, to find them again.
MARK: Final = "LEASEKEEPER_DEMO"
_LOOK_AGAIN: Final = 0.1
_APP: Final = "leasekeeper.demo.tasks:app"


class WorkerProcesses:
    """Processes of `leasekeeper worker`, by name. Each logs to its own file."""

    def __init__(self, folder: Path, database: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._database = database
        self._environ = {**environ, MARK: str(folder)}
        self._workers: dict[str, asyncio.subprocess.Process] = {}
        self._stopped: set[str] = set()

    async def start(self) -> None:
        """Two workers for the fleet, and one on somebody's laptop."""
        await self.start_worker("worker-1", concurrency=2)
        await self.start_worker("worker-2")
        await self.start_worker("laptop-1", pool=LAPTOP)

    async def start_worker(self, name: str, *, concurrency: int = 1, pool: str = "default") -> None:
        """Start one worker process, as a person would."""
        arguments = ["worker", _APP, "--name", name, "--concurrency", str(concurrency), "--pool", pool]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._workers[name] = await asyncio.create_subprocess_exec(
                *_stop_with_parent(),
                sys.executable,
                "-m",
                "leasekeeper",
                *arguments,
                cwd=self._folder,
                env=self._environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal is for the demo, which then asks its workers to stop.
                start_new_session=True,
            )

    async def kill(self, name: str) -> None:
        """Kill it (SIGKILL), as if its machine lost power."""
        self._stopped.add(name)
        self._signal(name, signal.SIGKILL)
        await self._workers[name].wait()

    async def sleep(self, name: str) -> None:
        """Stop it (SIGSTOP), as if its machine were suspended. Not during a write: that would block the others."""
        await asyncio.to_thread(self._stop_between_commits, name)

    def _stop_between_commits(self, name: str) -> None:
        from leasekeeper.stores.sqlite.write_block import writes_blocked

        with writes_blocked(self._database), suppress(ChildProcessError):
            self._signal(name, signal.SIGSTOP)
            os.waitid(os.P_PID, self._workers[name].pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wake(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def missing(self) -> list[str]:
        """Workers that ended without being stopped by the demo."""
        return [n for n, worker in self._workers.items() if worker.returncode is not None and n not in self._stopped]

    def ask_to_stop(self) -> None:
        """Send SIGTERM: the first lets running tasks finish, a second ends them at once."""
        self._stopped.update(self._workers)
        for name in self._workers:
            self._signal(name, signal.SIGCONT)
            self._signal(name, signal.SIGTERM)

    async def end(self) -> None:
        """Ask all to stop, and wait until they have."""
        self.ask_to_stop()
        waiting = [asyncio.ensure_future(worker.wait()) for worker in self._workers.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=END_SECONDS)
            for name in self._workers if late else ():
                self._signal(name, signal.SIGKILL)
            await asyncio.gather(*waiting)

    def _signal(self, name: str, number: signal.Signals) -> None:
        worker = self._workers[name]
        if worker.returncode is None:
            with suppress(ProcessLookupError):
                worker.send_signal(number)


def _stop_with_parent() -> list[str]:
    """Let the system send a signal to the workers if the demo dies, where it can do that."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []


async def wait_until_gone(folder: Path) -> list[int]:
    """Wait until no process of this folder is left. Returns those that do not end."""
    left = processes_of(folder)
    for _ in range(int(GONE_SECONDS / _LOOK_AGAIN)):
        if not left:
            break
        await asyncio.sleep(_LOOK_AGAIN)
        left = processes_of(folder)
    return left


def processes_of(folder: Path) -> list[int]:
    """Every process of the demo in this folder: workers, Playwright processes, keepers and browsers."""
    marks = (f"{MARK}={folder}\0", f"LEASEKEEPER_KEEPER={folder}/", f"--user-data-dir={folder}/")
    found = [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _has_any(entry, marks)]
    return sorted(pid for pid in found if pid != os.getpid())


def _has_any(process: Path, marks: Sequence[str]) -> bool:
    """Whether its environment or arguments contain the mark. False for a process that is gone."""
    content = b""
    for name in ("environ", "cmdline"):
        with suppress(OSError):
            content += b"\0" + (process / name).read_bytes() + b"\0"
    return any(b"\0" + mark.encode() in content for mark in marks)
