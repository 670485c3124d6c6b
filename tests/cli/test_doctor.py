"""`leasekeeper doctor` as people and programs use it: the screen, the document, the exit code."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.cli.doctor import lay_out
from leasekeeper.cli.hints import steps_of
from leasekeeper.cli.table import Screen
from leasekeeper.core.doctor.findings import CHECKS, Advice, Check, Finding, Group, Status, Step, Verdict, skip
from leasekeeper.core.doctor.scale_questions import QUESTIONS
from leasekeeper.version import __version__
from tests.cli.workplace import Workplace, in_terminal

NAMES = [*(check.id for check in CHECKS), *(question.check.id for question in QUESTIONS)]
GUIDES = Path(__file__).resolve().parents[2] / "docs/howto"
QUIET = ("--no-browser", "--only", "profiles", "--only", "queue", "--only", "schema")


def doctor(place: Workplace, code: int, *arguments: str) -> Any:
    """The document of a run that ends with this exit code."""
    result = place.cli("doctor", *arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_the_document_has_every_check_with_its_facts(place: Workplace) -> None:
    answer = json.loads(place.cli("doctor", "--no-browser", "--json").stdout)
    assert answer["version"] == __version__
    assert [finding["id"] for finding in answer["findings"]] == NAMES
    keys = {"id", "group", "question", "status", "answer", "found", "advice", "todo", "steps", "facts", "commands"}
    assert all(finding.keys() == keys for finding in answer["findings"])
    assert sum(answer["counts"].values()) == len(NAMES)
    worst = "fail" if answer["counts"]["fail"] else "warn"
    assert answer["status"] == worst


def test_the_exit_code_is_zero_unless_warnings_are_to_count(place: Workplace) -> None:
    assert doctor(place, 0, *QUIET)["status"] == "warn"
    assert doctor(place, 1, *QUIET, "--strict")["status"] == "warn"
    assert doctor(place, 0, "--only", "schema", "--strict")["status"] == "ok"


def test_a_failure_is_exit_code_two_with_and_without_strict(place: Workplace) -> None:
    wrong = place.cli("doctor", "--only", "settings", "--json", env={"LEASEKEEPER_LEASE_TTL": "soon"})
    assert wrong.exit_code == 2
    assert json.loads(wrong.stdout)["findings"][0]["status"] == "fail"
    strict = place.cli("doctor", "--only", "settings", "--strict", env={"LEASEKEEPER_LEASE_TTL": "soon"})
    assert strict.exit_code == 2


def test_only_some_checks_can_be_asked_for(place: Workplace) -> None:
    found = doctor(place, 0, "--only", "retries", "--only", "store")
    assert [finding["id"] for finding in found["findings"]] == ["store", "retries"]
    assert found["findings"][1]["answer"] == "yes"


def test_a_check_that_does_not_exist_is_refused_with_the_nearest(place: Workplace) -> None:
    assert "did you mean sweeper?" in place.fails(2, "doctor", "--only", "sweper")
    assert "there are: installation, profiles, queue, settings" in place.fails(2, "doctor", "--only", "xyzzy")


def test_a_store_that_is_not_there_is_not_made(place: Workplace) -> None:
    missing = place.directory / "other.db"
    result = place.cli("doctor", *QUIET, "--store", f"sqlite:///{missing}")
    assert result.exit_code == 0, result.output
    assert "10 not answered: the store cannot be used" in result.stdout
    assert not missing.exists()


def test_on_a_terminal_of_80_columns_nothing_is_wider(place: Workplace) -> None:
    code, seen = in_terminal("doctor", *QUIET, url=place.url)
    assert code == 0
    progress, _, screen = seen.rpartition("\r\x1b[K")
    assert "checking 1 of 20: schema" in progress
    assert "checking 20 of 20: run_record" in progress
    assert "checking" not in screen
    lines = [re.sub(r"\x1b\[\d*m", "", line) for line in screen.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0] == "Installation"
    assert "\x1b[33myes, but" in screen


def test_without_colours_words_carry_the_status(place: Workplace) -> None:
    text = place.cli("doctor", *QUIET).stdout
    assert "\x1b" not in text
    assert "  yes       Does the reason of a failure decide about retries?\n" in text
    assert "  yes, but  Do jobs say which environment they expect?\n" not in text, "no job was submitted yet"
    assert "→ Set LEASEKEEPER_PROBE_URL." in text


@pytest.mark.parametrize("width", [40, 60, 80, 200, None])
def test_a_finding_fits_every_screen(width: int | None) -> None:
    path = "/srv/" + "very-long-name/" * 12
    verdict = Verdict(status=Status.WARN, found=f"{path} is full", advice=(Advice.MAKE_ROOM,))
    findings = [
        Finding(check=Check("disk_space", group, "Is there room?"), verdict=verdict)
        for group in (Group.INSTALLATION, Group.QUEUE)
    ]
    lines = lay_out(findings, Screen(width=width, colours=False))
    if width is None:
        assert any(f"{path} is full" in line for line in lines)
    else:
        assert max(len(line) for line in lines) <= max(width, 50)
    assert lines[-1] == "0 ok, 2 warnings, 0 failed, 0 skipped"


def test_different_reasons_to_skip_are_all_reported() -> None:
    checks = [Check("a", Group.QUEUE, "A?"), Check("b", Group.QUEUE, "B?")]
    findings = [Finding(check=check, verdict=skip(f"no {check.id}")) for check in checks]
    text = "\n".join(lay_out(findings, Screen(width=80, colours=False)))
    assert "no a" in text
    assert "no b" in text


def test_the_guides_list_every_check_and_every_question() -> None:
    checks = (GUIDES / "check-your-installation.md").read_text(encoding="utf-8")
    questions = (GUIDES / "before-you-scale.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", checks, re.MULTILINE) == [check.id for check in CHECKS]
    asked = re.findall(r"^\| `(\w+)` \| (.*?) \|", questions, re.MULTILINE)
    assert asked == [(question.check.id, question.check.question) for question in QUESTIONS]


def test_what_to_type_stands_under_what_to_do() -> None:
    verdict = Verdict(status=Status.FAIL, found="schema 2", advice=(Advice.MIGRATE_STORE,), steps=(Step.MIGRATE_STORE,))
    finding = Finding(check=Check("schema", Group.INSTALLATION, "Is it new?"), verdict=verdict)
    lines = [line.strip() for line in lay_out([finding], Screen(width=80, colours=False))]
    assert lines[lines.index("→ Migrate the store.") + 1] == "leasekeeper db migrate"


@pytest.mark.parametrize("step", Step)
def test_every_step_has_a_command(step: Step) -> None:
    verdict = Verdict(status=Status.WARN, found="x", steps=(step,), facts={"path": "/srv/our data"})
    (command,) = steps_of(verdict)
    assert "{" not in command
    if step is Step.RESTRICT_DATA_DIR:
        assert command == "chmod 700 '/srv/our data'"
