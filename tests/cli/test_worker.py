"""`leasekeeper up` and `worker`: what they refuse to start with, and what they say when they start and stop."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from leasekeeper.cli.app_loader import load_app
from leasekeeper.cli.worker import _stopping
from leasekeeper.errors import InputError
from tests.cli.workplace import SECONDS_TO_ANSWER, Workplace, environment, process, program

TASKS = """\
from leasekeeper import App

app = App()


@app.task("look")
async def look(run):
    pass
"""


COST = ": a profile whose task is inside a mutating section is then quarantined, and its job goes to review"


def tasks(place: Workplace, more: str = "") -> str:
    (place.directory / "tasks.py").write_text(TASKS + more)
    return "tasks:app"


def refused(place: Workplace, *arguments: str, **settings: str) -> str:
    """What a worker says that must not start, for a fault of whoever started it."""
    done = subprocess.run(
        [*program(), *arguments],
        env=environment(place.url, **settings),
        cwd=place.directory,
        capture_output=True,
        text=True,
        timeout=SECONDS_TO_ANSWER,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_detector_of_a_reason_that_nobody_knows_is_refused(place: Workplace) -> None:
    more = 'app.detector("LOGIN_REQUIERD", url="*://shop.test/login*")\n'
    more += 'app.detector("OUT_OF_STOCK", text="sold out")\napp.reason("OUT_OF_STOCK")\n'
    reported = refused(place, "worker", tasks(place, more))
    assert "there is no reason LOGIN_REQUIERD; did you mean LOGIN_REQUIRED?" in reported
    assert "app.reason" in reported
    assert "OUT_OF_STOCK" not in reported


def test_a_detector_of_one_task_is_refused_too(place: Workplace) -> None:
    more = "from leasekeeper.core.detectors import Detector\n"
    more += '@app.task("buy", detectors=[Detector(reason="MINE", text="x")])'
    assert "there is no reason MINE." in refused(place, "up", tasks(place, more + "\nasync def buy(run): ...\n"))


@pytest.mark.parametrize(("folder", "why"), [("taken", "it is a file"), ("taken/data", "Not a directory")])
def test_a_data_folder_that_cannot_be_is_the_callers_fault(place: Workplace, folder: str, why: str) -> None:
    (place.directory / "taken").write_text("")
    reported = refused(place, "up", tasks(place), LEASEKEEPER_DATA_DIR=folder)
    assert f"{folder} cannot be used: {why}; set LEASEKEEPER_DATA_DIR" in reported


def test_what_cannot_be_written_in_the_data_folder_is_reported_as_well(place: Workplace) -> None:
    (place.directory / "data").mkdir()
    (place.directory / "data" / "bin").write_text("")
    assert "data/bin cannot be used: it is a file" in refused(
        place, "worker", tasks(place), LEASEKEEPER_DATA_DIR="data"
    )


def test_a_browser_that_is_not_there_is_the_callers_fault(place: Workplace) -> None:
    assert "(setting LEASEKEEPER_BROWSER)" in refused(
        place, "worker", tasks(place), LEASEKEEPER_BROWSER="/nowhere/chrome"
    )


FAULTY = {
    "name": ("def read():\n    return conf\n\n\nread()\n", "NameError: name 'conf' is not defined (faulty_name.py:2)"),
    "module": ("import not_there_at_all\n", "No module named 'not_there_at_all' (faulty_module.py:1)"),
    "syntax": ("def (:\n", "SyntaxError: invalid syntax (faulty_syntax.py, line 1)"),
    "own": ("from leasekeeper import App\nApp().reason('TIMEOUT')\n", "a reason of Leasekeeper (faulty_own.py:2)"),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_a_file_that_cannot_be_imported_is_reported_with_the_line(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, reported = FAULTY[fault]
    (tmp_path / f"faulty_{fault}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError) as refusal:
        load_app(f"faulty_{fault}:app")
    assert refusal.value.message.endswith(reported)


@pytest.mark.parametrize(
    ("runs", "reported"),
    [
        (0, "stopping: no task is running"),
        (1, f"stopping: 1 task may run up to 30 s more; Ctrl-C again ends it now{COST}"),
        (3, f"stopping: 3 tasks may run up to 30 s more; Ctrl-C again ends them now{COST}"),
    ],
)
def test_the_first_request_to_stop_is_answered(runs: int, reported: str) -> None:
    assert _stopping(runs, 30.0) == reported


@pytest.mark.parametrize(("command", "declared"), [(["worker"], True), (["up", "--no-server"], False)])
def test_a_worker_says_that_it_stops_and_that_there_is_nothing_to_work_with(
    empty: Workplace, command: list[str], declared: bool
) -> None:
    if declared:
        empty.apply()
    with (empty.directory / "log").open("w") as log:
        worker = subprocess.Popen(
            [*program(), *command, tasks(empty)],
            env=environment(empty.url),
            cwd=empty.directory,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert worker.stdout is not None
        assert any(line.startswith("  Ctrl-C asks it to stop") for line in worker.stdout)
        os.kill(worker.pid, signal.SIGINT)
        with worker.stdout:
            rest = worker.stdout.read()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
    assert ("this store has no profiles yet: leasekeeper apply FLEET" in rest) is not declared
    assert "stopping: no task is running\n" in (empty.directory / "log").read_text()


def test_checking_a_fleet_makes_no_store(tmp_path: Path) -> None:
    place = Workplace(url=f"sqlite:///{tmp_path}/new.db", directory=tmp_path)
    text = place.text("apply", place.fleet(), "--dry-run")
    assert text.endswith("dry run: 9 changes (9 added) not applied\n")
    assert "use --yes" in place.cli("apply", place.fleet()).stderr
    assert "nobody" in place.cli("apply", place.fleet("profiles: {p: {account: nobody}}"), "--yes").stderr
    assert list(tmp_path.glob("new.db*")) == []
    assert "applied 9 changes" in process("apply", place.fleet(), "--yes", url=place.url).stdout
