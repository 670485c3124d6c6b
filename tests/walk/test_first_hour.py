"""What a stranger does in the first hour, with the tutorial's own files and commands: real browsers, a real worker,
from an empty folder to a clean stop."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.walk.page import Interrupt, Save, Start, Step, Type, missing, steps_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/tutorial/first-hour.md"
STEPS = steps_of(PAGE)
PATIENCE = 200.0
# Lists, which may be asked again until they show what the page shows.
LISTS = ("jobs", "runs", "profiles", "reviews", "schedules", "why")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Walk:
    """A person with several terminals, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = str(free_port())
        self.terminals: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.job_id = ""
        own = {name: value for name, value in os.environ.items() if not name.startswith("LEASEKEEPER_")}
        browser = {name: os.environ[name] for name in ("LEASEKEEPER_BROWSER",) if name in os.environ}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environ = {**own, **browser, "PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "80"}

    def take(self, step: Step) -> None:
        match step:
            case Save():
                path = self.folder / step.path
                path.parent.mkdir(exist_ok=True)
                path.write_text(self._here(step.content), encoding="utf-8")
            case Start():
                self._start(self._here(step.command))
            case Type(command=command) if command.startswith("cd "):
                self.folder /= command.removeprefix("cd ")
            case Type():
                self._type(step)
            case Interrupt():
                self._interrupt(step)

    def _here(self, text: str) -> str:
        """The page's port may be taken on this machine, and ids are different each time."""
        return text.replace("8000", self.port).replace("JOB_ID", self.job_id)

    def _start(self, command: str) -> None:
        log = self.folder.parent / f"terminal-{len(self.terminals)}.log"
        with log.open("wb") as file:
            program = subprocess.Popen(
                shlex.split(command),
                cwd=self.folder,
                env=self.environ,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.terminals.append((program, log))
        self._until(log, "worker" if command.startswith("leasekeeper") else "Serving")

    def _until(self, log: Path, word: str) -> None:
        end = time.monotonic() + PATIENCE
        while word not in log.read_text(encoding="utf-8"):
            assert time.monotonic() < end, log.read_text(encoding="utf-8")
            time.sleep(0.05)  # waits: for another process, in small steps

    def _type(self, step: Type) -> None:
        words = shlex.split(self._here(step.command))
        asks = words[0] == "leasekeeper" and words[1] in LISTS and (words[1] == "why" or words[2:3] != ["requeue"])
        end = time.monotonic() + (PATIENCE if asks and "--note" not in words else 0)
        while True:
            done = subprocess.run(
                words, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            printed = done.stdout + done.stderr
            left = missing(step.answer, printed)
            if not left or time.monotonic() >= end:
                break
            time.sleep(0.2)  # waits: for the worker, in small steps
        assert not left, f"$ {step.command}\n{printed}\nthe page says: {left}"
        assert "Traceback" not in printed
        if words[:2] == ["leasekeeper", "submit"] and done.returncode == 0:
            self.job_id = printed.split()[1]

    def _interrupt(self, step: Interrupt) -> None:
        program, log = self.terminals[-1]
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE) == 0, log.read_text(encoding="utf-8")
        assert missing(step.answer, log.read_text(encoding="utf-8")) == []

    def close(self) -> None:
        for program, _ in self.terminals:
            if program.poll() is None:
                program.terminate()
                program.wait()


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    begun = Walk(tmp_path)
    yield begun
    begun.close()


@pytest.mark.timeout(900)
def test_a_stranger_gets_from_nothing_to_profiles_tasks_and_a_schedule(walk: Walk) -> None:
    for step in STEPS:
        walk.take(step)
    assert walk.folder.name == "shop"


def test_the_walk_has_every_station() -> None:
    typed = " ".join(step.command for step in STEPS if isinstance(step, Type | Start))
    for word in ("init", "apply", "up", "submit", "runs", "why", "clear", "requeue", "schedules run", "profiles"):
        assert f"leasekeeper {word}" in typed or f" {word} " in typed, word
    saved = {step.path for step in STEPS if isinstance(step, Save)}
    assert saved == {"site/index.html", "tasks.py", "fleet.yaml", "login.py"}
    assert any(isinstance(step, Interrupt) for step in STEPS)


def test_the_walk_begins_as_the_readme_does() -> None:
    """Whoever has read only the README types the same first lines."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [step.command for step in STEPS if isinstance(step, Type | Start)]
    for line in ("leasekeeper init shop", "cd shop", "leasekeeper up tasks:app"):
        assert line in commands
        assert line in readme


@pytest.mark.parametrize(
    ("line", "printed", "there"),
    [
        ("job 01a1e5c2-aeaa-7095-bcc8-50c0cc98f723 is queued", "job 01ffffff-aeaa is queued", True),
        ("RUN RESULT ENDED", "RUN  RESULT  WORKER  ENDED", True),
        ("anna available", "available anna", False),
        ("applied 5 changes", "", False),
    ],
)
def test_a_line_of_the_page_is_there_if_its_words_are(line: str, printed: str, there: bool) -> None:
    assert (missing((line,), printed) == []) is there
