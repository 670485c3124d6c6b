"""`leasekeeper init`: what it writes, what it leaves alone, and that the project it writes runs in a real browser."""

import json
import os
import shlex
import signal
import stat
import subprocess
import time
import tomllib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from leasekeeper.cli.init import FILES, NEXT
from leasekeeper.wire import load_fleet
from tests.cli.workplace import Workplace, in_terminal, process, program

SECONDS_TO_COMPLETE = 240
PAGE = "<!doctype html><title>a local page</title><h1>hello</h1>"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the environment but the browser to use."""
    for name in [name for name in os.environ if name.startswith("LEASEKEEPER_") and name != "LEASEKEEPER_BROWSER"]:
        monkeypatch.delenv(name)


def test_it_writes_a_project_and_says_what_to_type_next(tmp_path: Path) -> None:
    done = process("init", "shop", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == sorted(FILES)
    assert done.stdout.splitlines() == [
        f"wrote tasks.py, fleet.yaml, leasekeeper.toml, .gitignore in {tmp_path}/shop",
        "next, after cd shop:",
        "  leasekeeper apply fleet.yaml",
        "  leasekeeper up tasks:app",
        "  leasekeeper submit read_title --account example   # in another terminal",
    ]


def test_it_writes_into_the_current_folder_and_answers_in_json(tmp_path: Path) -> None:
    done = process("init", "--json", directory=tmp_path)
    answer = json.loads(done.stdout)
    assert answer == {"folder": str(tmp_path), "written": list(FILES), "next": list(NEXT), "notes": []}
    assert list(load_fleet(tmp_path / "fleet.yaml").profiles) == ["example"]
    reported = json.loads(process("settings", "--changed", "--json", directory=tmp_path).stdout)
    assert reported["file"] == str(tmp_path / "leasekeeper.toml")
    values = {item["name"]: item["value"] for item in reported["items"]}
    assert values["store"] == f"sqlite:///{tmp_path}/leasekeeper.db"
    assert values["data_dir"] == f"{tmp_path}/leasekeeper-data"


@pytest.mark.parametrize("name", [name for name in FILES if name != ".gitignore"])
def test_it_overwrites_nothing_and_names_what_is_there(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    done = process("init", directory=tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"leasekeeper: nothing was written: {tmp_path} has {name} already; name another folder\n"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_it_names_every_file_that_is_there(tmp_path: Path) -> None:
    process("init", directory=tmp_path)
    assert "has tasks.py, fleet.yaml and leasekeeper.toml already" in process("init", directory=tmp_path).stderr


def test_a_gitignore_that_is_there_stays_and_people_are_reported_what_to_add(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n")
    done = process("init", directory=tmp_path)
    assert done.returncode == 0
    assert "your .gitignore is as it was; add to it: leasekeeper.db* leasekeeper-data/" in done.stdout
    assert (tmp_path / ".gitignore").read_text() == "*.log\n"


def test_a_link_that_leads_nowhere_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").symlink_to(tmp_path / "elsewhere.py")
    assert process("init", directory=tmp_path).returncode == 2
    assert not (tmp_path / "elsewhere.py").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = process("init", "file/shop", directory=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "file/shop could not be written: Not a directory" in done.stderr


def test_another_store_is_the_projects_store_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    url = "postgresql://me:s3cr3t@db.example/leasekeeper"
    done = process("--store", url, "init", directory=tmp_path)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "leasekeeper.toml"
    assert tomllib.loads(file.read_text())["store"] == url
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "s3cr3t" not in done.stdout


def test_a_setting_that_would_lead_elsewhere_is_reported(tmp_path: Path) -> None:
    done = process("init", directory=tmp_path, url="sqlite:////srv/other.db")
    assert "LEASEKEEPER_STORE is set, and wins over leasekeeper.toml: unset it" in done.stdout


def test_git_ignores_what_must_not_be_committed(tmp_path: Path) -> None:
    process("init", directory=tmp_path)
    (tmp_path / "leasekeeper-data").mkdir()
    for name in ("leasekeeper.db", "leasekeeper.db-wal", "leasekeeper-data/x"):
        (tmp_path / name).write_text("")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    untracked = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(line[3:] for line in untracked.stdout.splitlines()) == sorted(FILES)


def test_what_it_says_fits_a_terminal(empty: Workplace) -> None:
    code, seen = in_terminal("init", "shop", url=empty.url, columns=80)
    assert code == 0
    assert [line for line in seen.splitlines()[1:] if len(line) > 80] == []


@pytest.mark.browser
def test_the_project_runs_as_it_says_in_a_real_browser(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text(PAGE)
    project = tmp_path / "shop"
    commands = json.loads(process("init", "shop", "--json", directory=tmp_path).stdout)["next"]
    apply, up, submit = (shlex.split(line)[1:] for line in commands)
    served = partial(SimpleHTTPRequestHandler, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        payload = json.dumps({"url": f"http://127.0.0.1:{server.server_port}/"})
        answers(project, *apply, "--yes")
        with subprocess.Popen([*program(), *up], cwd=project) as worker:
            try:
                submitted = json.loads(answers(project, *submit, "--payload", payload, "--json"))
                job = completed(project, submitted["items"][0]["job_id"])
                (run,) = json.loads(answers(project, "runs", "--json"))["items"]
            finally:
                worker.send_signal(signal.SIGINT)
        server.shutdown()
    assert worker.returncode == 0
    assert job["state"] == "completed"
    assert (run["result"], run["output"]) == ("completed", {"title": "a local page"})
    assert (project / "leasekeeper-data" / "profiles" / "example" / "Default").is_dir()


def answers(project: Path, *arguments: str) -> str:
    done = process(*arguments, directory=project)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def completed(project: Path, job_id: str) -> Any:
    """The job, once it is over or waits for a person."""
    until = time.monotonic() + SECONDS_TO_COMPLETE
    while time.monotonic() < until:
        job = json.loads(answers(project, "jobs", "show", job_id, "--json"))
        if job["state"] in ("completed", "dead", "review", "skipped", "cancelled"):
            return job
    raise AssertionError(f"the job did not end within {SECONDS_TO_COMPLETE} s")
