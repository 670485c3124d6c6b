"""Log lines: ids as fields, one line each, nothing that was not meant to be there."""

import io
import json
import logging
import sys
from typing import Any

import pytest

from leasekeeper.cli.log_format import FIELDS, JsonLines, Logfmt, formatter
from leasekeeper.cli.worker import log_to_stderr
from leasekeeper.errors import InputError


def record(message: str = "run %s ended", *arguments: object, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("leasekeeper.runtime.runner", logging.INFO, "", 0, message, arguments or ("r1",), None)
    for name, value in extra.items():
        setattr(made, name, value)
    made.created = 1_900_000_000.25
    return made


def test_json_has_the_ids_as_fields() -> None:
    line = JsonLines().format(record(run_id="r1", job_id="j1", profile_id="p1", lease_id="p1#7", token=7))
    assert "\n" not in line
    assert json.loads(line) == {
        "at": "2030-03-17T17:46:40.250Z", "level": "info", "logger": "runtime.runner", "message": "run r1 ended",
        "profile_id": "p1", "job_id": "j1", "run_id": "r1", "lease_id": "p1#7", "token": 7,
    }  # fmt: skip


def test_logfmt_quotes_what_is_not_one_word() -> None:
    line = Logfmt().format(record(run_id="r1", reason='it said "no"'))
    assert line == (
        "at=2030-03-17T17:46:40.250Z level=info logger=runtime.runner "
        r'message="run r1 ended" run_id=r1 reason="it said \"no\""'
    )


def test_a_field_that_nobody_listed_is_not_written() -> None:
    strange = {"password": "hunter2", "secret": "hunter2"}
    assert not set(strange) & set(FIELDS)
    for each in (JsonLines(), Logfmt()):
        assert "hunter2" not in each.format(record(**strange))


def test_a_traceback_is_one_field_in_json_and_lines_after_it_in_logfmt() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        failed = record()
        failed.exc_info = sys.exc_info()
    plain = json.loads(JsonLines().format(failed))
    assert plain["error"] == "ValueError"
    assert plain["traceback"].endswith("ValueError: no")
    first, *more = Logfmt().format(failed).split("\n")
    assert first.endswith("error=ValueError")
    assert more[-1] == "ValueError: no"


def test_the_format_follows_the_setting_and_the_terminal() -> None:
    assert isinstance(formatter("auto", io.StringIO()), JsonLines)
    assert isinstance(formatter("logfmt", io.StringIO()), Logfmt)
    assert isinstance(formatter("json", io.StringIO()), JsonLines)
    with pytest.raises(InputError, match="settings"):
        formatter("xml", io.StringIO())


@pytest.mark.parametrize("verbose", [False, True])
def test_verbose_shows_our_own_decisions_and_not_those_of_others(
    monkeypatch: pytest.MonkeyPatch, verbose: bool
) -> None:
    quiet = ("asyncio", "uvicorn", "httpx2")
    names = (*quiet, "leasekeeper")
    before = {name: logging.getLogger(name).level for name in names}
    asked: dict[str, Any] = {}
    monkeypatch.setattr(logging, "basicConfig", asked.update)
    try:
        log_to_stderr(verbose=verbose, log_format="json")
        assert asked["level"] == logging.INFO
        shown = {name: logging.getLogger(name).level for name in names}
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
    ours = logging.DEBUG if verbose else before["leasekeeper"]
    assert shown == {**dict.fromkeys(quiet, logging.WARNING), "leasekeeper": ours}
