"""What the command line shows of what pages said: evidence of a run, and a worker's log."""

import logging
from pathlib import Path
from types import SimpleNamespace

from leasekeeper.cli.evidence import evidence_lines
from leasekeeper.cli.log_format import Logfmt
from leasekeeper.cli.table import Screen
from leasekeeper.evidence.recorder import Recorder
from leasekeeper.evidence.redact import Redactor


def test_requests_that_failed_and_answers_that_refused_are_shown(tmp_path: Path) -> None:
    recorder = Recorder(Redactor())
    failed = SimpleNamespace(method="GET", url="https://shop.test/a", failure="net::ERR_FAILED")
    refused = SimpleNamespace(
        type="error",
        text="Failed to load resource: the server responded with a status of 404 (Not Found)",
        location={"url": "https://shop.test/b"},
    )
    recorder._on_request_failed(failed)
    recorder._on_console(refused)
    lines = list(evidence_lines(recorder.summary(), tmp_path, Screen(width=None, colours=False)))
    assert lines[-2:] == ["    GET https://shop.test/a: net::ERR_FAILED", "    https://shop.test/b: status 404"]


def test_a_log_line_cannot_move_the_cursor() -> None:
    record = logging.LogRecord("a", logging.INFO, "", 0, "Error: %s", ("\x1b[2Jdone\r\nnext",), None)
    assert Logfmt().format(record).endswith('message="Error:  [2Jdone  next"')
