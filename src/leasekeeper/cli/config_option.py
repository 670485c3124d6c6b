"""`--config FILE` and `--token TEXT`: the settings file and the token of one command, its child processes included.

Apart from the other shared options, because the top of the tree needs these and must import little.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

# As in settings_file.py, which `--help` must not import.
VARIABLE = "LEASEKEEPER_CONFIG"
TOKEN_VARIABLE = "LEASEKEEPER_TOKEN"  # noqa: S105 - the name of a variable


def config_option(command: F) -> F:
    """--config, here or before the command. Sets the environment variable while the command runs."""
    return click.option(
        "--config",
        metavar="FILE",
        expose_value=False,
        callback=_setting(VARIABLE),
        help="The settings file.  [default: $LEASEKEEPER_CONFIG, leasekeeper.toml beside the SQLite file or here]",
    )(command)


def token_option(command: F) -> F:
    """--token, here or before the command, for a store behind a server."""
    return click.option(
        "--token",
        metavar="TEXT",
        expose_value=False,
        callback=_setting(TOKEN_VARIABLE),
        help="The token for a server's store; others on this machine may see it: prefer $LEASEKEEPER_TOKEN.",
    )(command)


def _setting(variable: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    """A callback that sets an environment variable for as long as the command runs."""

    def use(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is None:
            return
        if ctx.resilient_parsing:
            ctx.meta[variable] = value  # for completions, which end with the process
            return
        before = os.environ.get(variable)
        os.environ[variable] = value

        def restore() -> None:
            if before is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = before

        ctx.call_on_close(restore)

    return use
