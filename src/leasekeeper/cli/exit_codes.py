"""How a command fails: one message on stderr, one documented exit code, no traceback.

With --json the message is a JSON document. Only a bug of Leasekeeper itself shows where it happened.
"""

import errno
import os
import sys
from typing import Final

import click

from leasekeeper.errors import (
    AccessDenied,
    BrokerUnavailable,
    Conflict,
    DemoFailed,
    EvidenceUnavailable,
    InputError,
    LeasekeeperError,
    LeaseLost,
    NotFound,
    PartlyDone,
    RequestRefused,
    StoreError,
)

EXIT_CODES: Final = {
    0: "done",
    1: "a bug in Leasekeeper (please report it), or the output cannot be written",
    2: "wrong usage or bad input; nothing was written",
    3: "no such record",
    4: "conflict: the record is in another state than the command needs",
    5: "the lease is lost: the write was refused",
    6: "the store, evidence or a queue is unusable: down, read-only, wrong version",
    7: "partly done: the message says how far it got, and what stopped it",
    8: "access denied: no valid token, or one that does not allow this",
    130: "interrupted, or a question was answered with no",
}

_CODE_OF: Final[tuple[tuple[type[LeasekeeperError], int], ...]] = (
    (InputError, 2),
    (RequestRefused, 2),
    (NotFound, 3),
    (Conflict, 4),
    (LeaseLost, 5),
    (StoreError, 6),
    (EvidenceUnavailable, 6),
    (BrokerUnavailable, 6),
    (PartlyDone, 7),
    (DemoFailed, 7),
    (AccessDenied, 8),
)


def exit_code(error: LeasekeeperError) -> int:
    """The documented exit code of an error."""
    return next((code for kind, code in _CODE_OF if isinstance(error, kind)), 1)


# The optional packages, as they are imported, and the extra that brings each.
EXTRAS: Final = {
    "psycopg": "postgres",
    "playwright": "browser",
    "cryptography": "secrets",
    "httpx2": "http",
    "jinja2": "server",
    "starlette": "server",
    "uvicorn": "server",
    "httptools": "server",
    "prometheus_client": "server",
    "websockets": "sessions",
    "mcp": "mcp",
    "obstore": "s3",
    "backports": "profiles",
    "redis": "redis",
    "aio_pika": "rabbitmq",
    "boto3": "sqs",
    "opentelemetry": "tracing",
}


def fail(error: BaseException, *, as_json: bool) -> int:
    """Print the error on stderr, unless nobody can read it, and return the exit code."""
    match error:
        case SystemExit(code=code):
            return code if isinstance(code, int) else 0
        case BrokenPipeError():
            return _discard_output(0)
        case LeasekeeperError():
            say_error(error, as_json=as_json)
            return exit_code(error)
        case ModuleNotFoundError(name=name) if name and (extra := EXTRAS.get(name.partition(".")[0])):
            needs = f"this needs {name.partition('.')[0]}, which is not installed here"
            _say("INVALID_INPUT", f"{needs}; install it: pip install 'leasekeeper[{extra}]'", as_json=as_json)
            return 2
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message(), err=True)
            return 2
        case click.ClickException():
            _say("INVALID_INPUT", _usage_message(error), as_json=as_json)
            return 2
        case click.exceptions.Abort() | KeyboardInterrupt() | EOFError():
            return 130
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EIO, filename=None):
            _say("OUTPUT_FAILED", f"cannot write the answer: {error.strerror or error}", as_json=as_json)
            return _discard_output(1)
        case _:
            return _bug(error, as_json=as_json)


def _discard_output(code: int) -> int:
    """The output cannot be written (`leasekeeper … | head`, a full disk): discard the rest of it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    return code


def _usage_message(error: click.ClickException) -> str:
    message = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message}\n  usage and options: {context.command_path} --help" if context else message


def _bug(error: BaseException, *, as_json: bool) -> int:
    import traceback

    if not as_json:
        traceback.print_exception(error)
    _say(
        "BUG",
        f"this is a bug in Leasekeeper, please report it: {type(error).__name__}: {error}",
        as_json=as_json,
    )
    return 1


def say_error(error: LeasekeeperError, *, as_json: bool) -> None:
    """For people the message, every problem and what to type next; for programs the error in JSON."""
    if as_json:
        from leasekeeper.wire import error_to_json

        _answer(error_to_json(error))
        return
    from leasekeeper.cli.hints import hint_of

    hint = hint_of(error)
    click.echo(f"leasekeeper: {error}" + (f"\n  {hint}" if hint else ""), err=True)


def _say(code: str, message: str, *, as_json: bool) -> None:
    if as_json:
        _answer({"code": code, "message": message})
    else:
        click.echo(f"leasekeeper: {message}", err=True)


def _answer(error: dict[str, object]) -> None:
    import json

    click.echo(json.dumps({"error": error}, ensure_ascii=False), err=True)
