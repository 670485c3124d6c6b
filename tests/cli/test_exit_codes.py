"""How commands fail: one message on stderr, the documented code, and quietly where nobody is to blame."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import leasekeeper
from leasekeeper import errors
from leasekeeper.cli.exit_codes import exit_code, fail
from tests.cli.workplace import SECONDS_TO_ANSWER, Workplace, environment, process, program


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.InputError, 2),
        (errors.UnknownAccount, 2),
        (errors.UnknownProfile, 2),
        (errors.AmbiguousProfile, 2),
        (errors.UnknownTask, 2),
        (errors.NotFound, 3),
        (errors.Conflict, 4),
        (errors.IdempotencyConflict, 4),
        (errors.VersionConflict, 4),
        (errors.IllegalTransition, 4),
        (errors.LeaseLost, 5),
        (errors.StoreError, 6),
        (errors.StoreUnavailable, 6),
        (errors.StoreNotWritable, 6),
        (errors.NetworkFileSystem, 6),
        (errors.SchemaTooOld, 6),
        (errors.SchemaTooNew, 6),
    ],
)
def test_every_error_has_its_exit_code(kind: type[errors.LeasekeeperError], code: int) -> None:
    assert exit_code(kind("it did not work")) == code


def test_a_busy_profile_is_a_conflict() -> None:
    assert exit_code(errors.ProfileBusy("taken", reason="blocked_by_profile_lease")) == 4


def test_every_kind_of_error_is_known_here() -> None:
    named = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in named if issubclass(kind, errors.LeasekeeperError)]
    unknown = [kind for kind in kinds if kind not in (errors.LeasekeeperError, errors.ProfileBusy, errors.Fail)]
    assert [kind for kind in unknown if exit_code(kind("x")) == 1] == []


def test_the_message_is_for_people_and_the_code_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    error = errors.InputError("the job is wrong", [errors.Problem("jobs[3].priority", "must be a number")])
    assert fail(error, as_json=False) == 2
    assert capsys.readouterr().err == "leasekeeper: the job is wrong\n  jobs[3].priority: must be a number\n"
    assert fail(error, as_json=True) == 2
    assert json.loads(capsys.readouterr().err)["error"] == {
        "code": "INVALID_INPUT",
        "message": "the job is wrong",
        "problems": [{"where": "jobs[3].priority", "message": "must be a number"}],
    }


def test_a_bug_shows_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(ZeroDivisionError("oops"), as_json=False) == 1
    assert "please report it: ZeroDivisionError: oops" in capsys.readouterr().err
    assert fail(ZeroDivisionError("oops"), as_json=True) == 1
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "BUG"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), click.exceptions.Abort()])
def test_an_interruption_says_nothing(interruption: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(interruption, as_json=False) == 130
    assert capsys.readouterr().err == ""


def test_a_reader_that_left_is_no_failure(place: Workplace) -> None:
    for _ in range(20):
        place.submit()
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*program(), "jobs", "--json"],
        env=environment(place.url),
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_is_reported_without_a_traceback(place: Workplace) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - this is a device, no file
        done = subprocess.run(
            [*program(), "jobs"],
            env=environment(place.url),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "leasekeeper: cannot write the answer: No space left on device\n"


def test_ctrl_c_is_quiet(place: Workplace) -> None:
    child = subprocess.Popen(
        [*program(), "events", "--follow", "--json"],
        env=environment(place.url, PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    _, reported = child.communicate(timeout=60)
    assert (child.returncode, reported.strip()) == (130, "")


def test_wrong_usage_names_the_help(empty: Workplace) -> None:
    assert "leasekeeper jobs list --help" in empty.fails(2, "jobs", "--colour", "red")


def test_no_command_at_all_shows_the_help() -> None:
    done = process()
    assert done.returncode == 2
    assert "Usage: leasekeeper" in done.stderr


INTERRUPTED_IN_IMPORTS = """\
import builtins, os, signal, sys
real = builtins.__import__
def importing(name, *more, **options):
    if name == {name!r}:
        builtins.__import__ = real
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *more, **options)
builtins.__import__ = importing
sys.argv = ["leasekeeper", "jobs"]
from leasekeeper.__main__ import main
main()
"""


@pytest.mark.parametrize("name", ["leasekeeper.cli", "click", "leasekeeper.lists", "asyncio", "sqlite3"])
def test_ctrl_c_in_the_first_moments_prints_nothing(place: Workplace, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IN_IMPORTS.format(name=name)],
        env=environment(place.url),
        capture_output=True,
        text=True,
        timeout=SECONDS_TO_ANSWER,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_little_is_imported_before_ctrl_c_is_quiet() -> None:
    imported = "import sys, leasekeeper.__main__; print(*({'re', 'typing', 'asyncio', 'click'} & {*sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", imported],
        env={"PYTHONPATH": str(Path(leasekeeper.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
