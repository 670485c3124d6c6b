"""What a failed command answers: one message on stderr, one documented exit code, no traceback.

With --json the message is a JSON document. Only a bug of Leasekeeper itself shows where it happened.
"""

import errno
import os
import sys
from typing import Final

import click

from leasekeeper.errors import Conflict, InputError, LeasekeeperError, LeaseLost, NotFound, PartlyDone, StoreError

EXIT_CODES: Final = {
    0: "done",
    1: "a bug in Leasekeeper (please report what it printed), or the answer could not be written",
    2: "wrong usage or bad input; nothing was written",
    3: "no such record",
    4: "conflict: the record is in another state than the command needs",
    5: "the lease is lost: the write was refused",
    6: "the store cannot be used: down, not writable, or its schema is not this program's",
    7: "part of it was done: the message says how far it came, and what stopped it",
    130: "interrupted, or a question was answered with no",
}

_CODE_OF: Final[tuple[tuple[type[LeasekeeperError], int], ...]] = (
    (InputError, 2),
    (NotFound, 3),
    (Conflict, 4),
    (LeaseLost, 5),
    (StoreError, 6),
    (PartlyDone, 7),
)


def exit_code(error: LeasekeeperError) -> int:
    """The documented exit code of an error."""
    return next((code for kind, code in _CODE_OF if isinstance(error, kind)), 1)


def fail(error: BaseException, *, as_json: bool) -> int:
    """Say on stderr what went wrong, if that helps anybody, and return the exit code."""
    match error:
        case SystemExit(code=code):
            return code if isinstance(code, int) else 0
        case BrokenPipeError():
            return _discard_output(0)
        case LeasekeeperError():
            _say(error.code, error.message, as_json=as_json, problems=getattr(error, "problems", ()))
            return exit_code(error)
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
    """Nobody takes the answer (`leasekeeper … | head`, a full disk): what is left of it goes nowhere."""
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


def _say(code: str, message: str, *, as_json: bool, problems: tuple[object, ...] = ()) -> None:
    if not as_json:
        click.echo(f"leasekeeper: {message}", err=True)
        return
    import json
    from dataclasses import asdict, is_dataclass

    answer: dict[str, object] = {"code": code, "message": message}
    if problems:
        answer["problems"] = [asdict(p) for p in problems if is_dataclass(p) and not isinstance(p, type)]
    click.echo(json.dumps({"error": answer}, ensure_ascii=False), err=True)
