"""How log lines look: logfmt on a terminal, one JSON object per line elsewhere; or as the setting `log_format` says.

Ids are fields of their own (`run_id`, `job_id` …), taken from a record's `extra`. Only the names in `FIELDS` are
written, so a line contains nothing else that code attached to a record.
"""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, TextIO

from leasekeeper.cli.table import printable
from leasekeeper.errors import InputError, Problem

FORMATS: Final = ("auto", "logfmt", "json")
FIELDS: Final = (
    "event", "worker_id", "account_id", "profile_id", "job_id", "run_id", "lease_id", "token", "task", "attempt",
    "result", "reason", "phase", "seconds", "delivery_id", "endpoint_id", "host", "trace_id",
)  # fmt: skip
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/@+,#*%")


def items(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """The fields of a line: time, level, logger, message, ids, and the class of an exception."""
    at = datetime.fromtimestamp(record.created, UTC)
    yield "at", at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    yield "level", record.levelname.lower()
    yield "logger", record.name.removeprefix("leasekeeper.")
    yield "message", record.getMessage()
    for name in FIELDS:
        value = getattr(record, name, None)
        if value is not None:
            yield name, value
    if record.exc_info and record.exc_info[0] is not None:
        yield "error", record.exc_info[0].__name__


class JsonLines(logging.Formatter):
    """One JSON object per line; a traceback is one more field."""

    def format(self, record: logging.LogRecord) -> str:
        line = dict(items(record))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class Logfmt(logging.Formatter):
    """`name=value` pairs on one line; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        line = " ".join(f"{name}={_quoted(value)}" for name, value in items(record))
        more = self.formatException(record.exc_info).split("\n") if record.exc_info else ()
        # No control characters: errors may contain text of web pages.
        return "\n".join((line, *map(printable, more)))


def _quoted(value: object) -> str:
    text = printable(str(value))
    return text if text and set(text) <= _PLAIN else json.dumps(text, ensure_ascii=False)


def formatter(name: str, stream: TextIO) -> logging.Formatter:
    """The formatter for this value of `log_format`. Raises InputError if there is no such format."""
    if name not in FORMATS:
        wrong = Problem("LEASEKEEPER_LOG_FORMAT", f"must be one of: {', '.join(FORMATS)}")
        raise InputError("the settings are not usable", [wrong])
    return Logfmt() if name == "logfmt" or (name == "auto" and stream.isatty()) else JsonLines()
