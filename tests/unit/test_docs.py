"""The documentation, held against the program: generated pages, links, code blocks, commands and examples.

A block marked `python runnable` really runs: as a program if it calls `asyncio.run`, else with a `client`
that is connected to a fresh SQLite store with the quickstart's fleet.
"""

import ast
import asyncio
import inspect
import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copytree, ignore_patterns
from textwrap import dedent
from threading import Thread
from types import FunctionType
from typing import Any

import click
import pytest

from leasekeeper import Event, connect
from leasekeeper.cli import cli
from leasekeeper.cli.app_loader import load_app
from leasekeeper.cli.init import NEXT
from leasekeeper.wire import load_fleet
from tools import docs

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "examples/quickstart"
TASKS = ROOT / "examples/tasks"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/**/*.md"))]
SECONDS = 60
PROGRAM = (sys.executable, "-c", "from leasekeeper.cli import main; main()")
COMMANDS = ("apply", "up", "submit sync_orders")

# Also inside a list, where it is indented.
FENCE = re.compile(r"^ *```([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
# What ends a command in a line of shell.
SHELL = {"|", ">", ">>", "&&", ";"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(*languages: str) -> Iterator[tuple[str, str, str]]:
    """Fenced blocks of these languages: where, the words after the fence, the block."""
    for page in PAGES:
        for number, (info, body) in enumerate(FENCE.findall(text_of(page)), 1):
            if info.split()[:1] and info.split()[0] in languages:
                yield f"{name_of(page)} block {number}", info, dedent(body)


PYTHON = [pytest.param(body, id=where) for where, _, body in blocks("python")]
RUNNABLE = [pytest.param(body, id=where) for where, info, body in blocks("python") if "runnable" in info.split()]


@pytest.mark.parametrize("name", docs.PAGES)
def test_a_generated_page_is_what_the_program_says(name: str) -> None:
    assert text_of(docs.REFERENCE / name) == docs.PAGES[name](), "run `make docs`"


def test_the_reference_holds_generated_pages_only() -> None:
    assert sorted(path.name for path in docs.REFERENCE.iterdir()) == sorted(docs.PAGES)


def test_every_public_name_has_a_description_of_its_own() -> None:
    rows = re.findall(r"^\| `leasekeeper\.(\w+)` \| (.*) \|$", docs.PAGES["python.md"](), re.MULTILINE)
    descriptions = [what for _, what in rows]
    assert len(rows) > 20
    assert [name for name, what in rows if not what or descriptions.count(what) > 1] == []


def test_the_generator_writes_what_is_missing_and_checks_without_writing(tmp_path: Path) -> None:
    assert docs.main(["--check"], tmp_path) == 1
    assert list(tmp_path.iterdir()) == []
    assert docs.main([], tmp_path) == 0
    assert docs.main(["--check"], tmp_path) == 0
    (tmp_path / "states.md").write_text("old", encoding="utf-8")
    assert docs.differing(tmp_path) == ["states.md"]
    assert docs.main(["--wrong"], tmp_path) == 2


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual hosts make them."""
    kept = [re.sub(r"[^\w\- ]", "", title.lower()) for title in HEADING.findall(FENCE.sub("", text_of(page)))]
    return {title.strip().replace(" ", "-") for title in kept}


def test_every_relative_link_leads_to_a_file_and_a_heading() -> None:
    broken = []
    for page in PAGES:
        for target in LINK.findall(INLINE.sub("", FENCE.sub("", text_of(page)))):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                broken.append(f"{name_of(page)}: {target}")
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        targets = LINK.findall(FENCE.sub("", text_of(page)))
        waiting += [(page.parent / target.partition("#")[0]).resolve() for target in targets]
    assert [name_of(page) for page in PAGES if page not in seen and page.is_relative_to(ROOT / "docs")] == []


@pytest.mark.parametrize("body", PYTHON)
def test_every_python_block_compiles(body: str) -> None:
    compiled(body)


def compiled(body: str) -> Any:
    """The block as code; `await` and `async with` may stand at its top."""
    return compile(body, "<block>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("body", RUNNABLE)
def test_a_runnable_block_runs(body: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEKEEPER_STORE", sqlite_url)
    shell("leasekeeper", "apply", "fleet.yaml", "--yes")
    if "asyncio.run(" in body:
        shell(sys.executable, "-c", body)
    else:
        asyncio.run(run_block(body))


async def run_block(body: str) -> None:
    async with connect() as client:
        done = FunctionType(compiled(body), {"client": client})()
        if inspect.iscoroutine(done):
            await done


def test_there_are_runnable_blocks_in_the_readme_and_in_a_guide() -> None:
    runnable = [where for where, info, _ in blocks("python") if "runnable" in info]
    assert {where.split()[0] for where in runnable} >= {"README.md", "docs/howto/lease-from-your-own-program.md"}


def test_the_readme_shows_the_example_as_it_is() -> None:
    shown = [body for where, info, body in blocks("python") if where.startswith("README.md")]
    for example, body in zip((TASKS / "tasks.py", QUICKSTART / "lease_and_submit.py"), shown, strict=True):
        _, _, program = text_of(example).partition('"""\n\n')
        assert body == program
    (fleet,) = [body for where, _, body in blocks("yaml") if where.startswith("README.md")]
    assert fleet == text_of(TASKS / "fleet.yaml")


@pytest.mark.browser
def test_the_tasks_of_the_readme_run_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tasks"
    copytree(TASKS, place, ignore=ignore_patterns("leasekeeper*", "__pycache__"))
    for name in [name for name in os.environ if name.startswith("LEASEKEEPER_")]:
        if name != "LEASEKEEPER_BROWSER":
            monkeypatch.delenv(name)
    lines = [line for where, line, _ in command_lines() if where.startswith("README.md block")]
    apply, up, submit = (next(x for x in lines if x.startswith(f"leasekeeper {word} ")) for word in COMMANDS)
    served = partial(SimpleHTTPRequestHandler, directory=place / "shop")
    with ThreadingHTTPServer(("127.0.0.1", 0), served) as shop:
        Thread(target=shop.serve_forever, daemon=True).start()
        shell(*shlex.split(apply), "--yes", cwd=place)
        address = f"http://127.0.0.1:{shop.server_port}/"
        assert "http://127.0.0.1:8000/" in submit
        with subprocess.Popen([*PROGRAM, *shlex.split(up)[1:]], cwd=place) as worker:
            try:
                shell(*shlex.split(submit.replace("http://127.0.0.1:8000/", address)), cwd=place)
                (run,) = first_ended(place)
                assert (run["result"], run["output"], run["message"]) == ("completed", {"orders": 2}, "")
            finally:
                worker.send_signal(signal.SIGINT)
        assert worker.returncode == 0
        shop.shutdown()


def test_the_readme_says_what_init_says_is_next() -> None:
    lines = [line.strip() for where, line, _ in command_lines() if where.startswith("README.md block")]
    (first,) = [number for number, line in enumerate(lines) if line.startswith("leasekeeper init ")]
    assert lines[first + 1 : first + 1 + len(NEXT)] == list(NEXT)


def first_ended(place: Path) -> list[Any]:
    """The runs, once there is one and it has ended."""
    until = time.monotonic() + 4 * SECONDS
    while time.monotonic() < until:
        runs: list[Any] = json.loads(shell("leasekeeper", "runs", "--json", cwd=place))["items"]
        if runs and all(run["ended_at"] for run in runs):
            return runs
    raise AssertionError(f"no run has ended in {4 * SECONDS} s")


def test_the_example_of_tasks_is_an_app_and_its_fleet_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TASKS)
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
    assert list(load_app("tasks:app").tasks) == ["sync_orders"]
    monkeypatch.delitem(sys.modules, "tasks", raising=False)
    assert list(load_fleet(TASKS / "fleet.yaml").profiles) == ["store_us_018"]


def shell(*command: str, expect: int = 0, cwd: Path = QUICKSTART) -> str:
    """What a program of the quickstart prints. `leasekeeper` is this Python's."""
    if command[0] == "leasekeeper":
        command = (*PROGRAM, *command[1:])
    done = subprocess.run(
        command, cwd=cwd, env=os.environ, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def test_the_tutorial_goes_as_it_is_reported(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEKEEPER_STORE", sqlite_url)
    monkeypatch.setenv("LEASEKEEPER_BACKOFF_FIRST", "0")
    assert "applied 7 changes" in shell("leasekeeper", "apply", "fleet.yaml", "--yes")
    assert shell("leasekeeper", "apply", "fleet.yaml") == "nothing to change\n"
    assert "blocked_by_no_worker" in shell(sys.executable, "lease_and_submit.py")

    shell(sys.executable, "worker.py", "--die", expect=-9)
    assert answer("sweep")["expired"] == 0
    let_the_lease_run_out(tmp_path / "leasekeeper.db")
    assert swept("promoted") == {"expired": 1, "resolved": 1, "promoted": 1}
    assert answer("profiles", "show", "store_us_018")["lane"]["state"] == "quarantined"
    (job,) = answer("jobs")["items"]
    assert (job["state"], job["blocked_reason"], job["losses"]) == ("blocked", "blocked_by_profile_state", 1)

    (review,) = answer("reviews")["items"]
    decided = shell("leasekeeper", "reviews", "decide", review["review_id"], "clear", "--note", "looked at it")
    assert decided == "profile store_us_018 is now available\n"
    assert "job completed, profile available" in shell(sys.executable, "worker.py")
    assert answer("jobs", "show", job["job_id"])["state"] == "completed"
    asyncio.run(check_events())


def test_the_tutorial_takes_back_every_setting_that_it_makes() -> None:
    tutorial = "".join(body for where, _, body in blocks("sh") if "first-lease" in where)
    made, taken = (re.findall(rf"^{word} (.+)$", tutorial, re.MULTILINE) for word in ("export", "unset"))
    names = {each.partition("=")[0] for line in made for each in line.split()}
    assert names == {name for line in taken for name in line.split()} != set()


def let_the_lease_run_out(file: Path) -> None:
    """A short lease would end by itself; but then nobody could hold one on a machine that stands still for a second."""
    with closing(sqlite3.connect(file)) as connection, connection:
        ended = connection.execute("UPDATE runs SET expires_at = acquired_at + 1 WHERE ended_at IS NULL")
        assert ended.rowcount == 1


def answer(*arguments: str) -> Any:
    return json.loads(shell("leasekeeper", *arguments, "--json"))


def swept(until: str) -> dict[str, int]:
    """What sweeps did, up to the one that did what was waited for."""
    done: dict[str, int] = {}
    for _ in range(SECONDS):
        counts = answer("sweep")
        done = {name: done.get(name, 0) + count for name, count in counts.items() if count or name in done}
        if done.get(until):
            return done
    raise AssertionError(f"nothing {until} in {SECONDS} sweeps")


async def check_events() -> None:
    """Each event of the tutorial carries what the page about events says."""
    async with connect() as client:
        events = (await client.find(Event, limit=1000)).items
    assert len({event.type for event in events}) > 10
    for event in events:
        assert set(event.data) <= set(docs.EVENTS[event.type][1]), event.type


def test_the_jobs_of_the_quickstart_are_accepted(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEKEEPER_STORE", sqlite_url)
    assert len(load_fleet(QUICKSTART / "fleet.yaml").profiles) == 3
    shell("leasekeeper", "apply", "fleet.yaml", "--yes")
    assert shell("leasekeeper", "submit", "--file", "jobs.jsonl") == "submitted 2 jobs, 0 were already handled\n"


def command_lines() -> Iterator[tuple[str, str, bool]]:
    """Every `leasekeeper …` that the documentation shows: where, the line, and whether it is given in full."""
    for where, info, body in blocks("sh", "console"):
        for line in body.splitlines():
            # In a console, only what follows the prompt is a command; the rest is what it printed.
            typed = line.partition(" # ")[0] if info == "sh" else line.removeprefix("$ ") if line[:2] == "$ " else ""
            found = re.search(r"(?:^|\$\(|\s)(leasekeeper .*)", typed)
            if found:
                yield where, found[1], True
    for page in PAGES:
        for line in INLINE.findall(FENCE.sub("", text_of(page))):
            if line.startswith("leasekeeper ") and page.name != "cli.md":
                yield name_of(page), line, False


def parse(arguments: Sequence[str]) -> None:
    """Take the arguments through the tree of commands, down to the last one, and run nothing."""
    command: click.Command | None = cli
    with ExitStack() as contexts:
        context = contexts.enter_context(cli.make_context("leasekeeper", list(arguments)))
        while isinstance(command, click.Group):
            rest = [*context._protected_args, *context.args]
            name, command, left = command.resolve_command(context, rest)
            assert command is not None, name
            context = contexts.enter_context(command.make_context(name, left, parent=context))


def test_every_command_in_the_docs_is_one_that_exists(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(QUICKSTART)
    wrong = []
    shown = list(command_lines())
    for where, line, whole in shown:
        words = shlex.split(re.sub(r"\$\{[^}]*\}+\"?", "", line).rstrip(")"))
        end = next((n for n, word in enumerate(words) if word in SHELL), len(words))
        try:
            parse(words[1:end])
        except click.exceptions.Exit:
            continue
        except click.MissingParameter as error:
            if whole:
                wrong.append(f"{where}: {line}: {error.format_message()}")
        except (click.ClickException, AssertionError) as error:
            wrong.append(f"{where}: {line}: {error}")
    assert wrong == []
    assert len(shown) > 40


def test_every_make_target_in_the_docs_is_one_that_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    spoken = [(page, line) for page in PAGES for line in INLINE.findall(text_of(page)) if line.startswith("make ")]
    shown = [(where, line) for where, _, body in blocks("sh", "console") for line in body.splitlines()]
    lines = [(name_of(page), line) for page, line in spoken]
    lines += [(where, line.removeprefix("$ ")) for where, line in shown if line.startswith(("make ", "$ make "))]
    assert [f"{where}: {line}" for where, line in lines if line.split()[1] not in targets] == []
    assert len(lines) > 5
