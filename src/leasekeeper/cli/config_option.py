"""`--config FILE`: which settings file counts for one command, its child processes included.

Stands apart from the other shared options because the top of the tree has it too, and must stay light.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

# As in settings_file.py, which `--help` must not import.
VARIABLE = "LEASEKEEPER_CONFIG"


def config_option(command: F) -> F:
    """--config, here or before the command. It is the environment variable for as long as the command runs."""
    return click.option(
        "--config",
        metavar="FILE",
        expose_value=False,
        callback=_use,
        help="The settings file.  [default: $LEASEKEEPER_CONFIG, leasekeeper.toml beside the SQLite file or here]",
    )(command)


def _use(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is None or ctx.resilient_parsing:
        return
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = value

    def restore() -> None:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before

    ctx.call_on_close(restore)
