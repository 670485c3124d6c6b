"""The command line: `leasekeeper NOUN VERB`. One module per noun, imported when it is used.

Owns the tree of commands and the exit code; knows nothing of stores. This module stays light: `leasekeeper --help` must
not import what only a command needs.
"""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from leasekeeper.cli.config_option import config_option, token_option
from leasekeeper.cli.exit_codes import EXIT_CODES, fail
from leasekeeper.errors import nearest
from leasekeeper.interrupts import interruptible

SECTIONS: Final = {
    "Run": {
        "up": "Run everything on one machine: tasks, browsers, housekeeping.",
        "worker": "Join a fleet: take jobs and run them in real browsers.",
        "server": "Serve the HTTP API over a store, for workers and programs elsewhere.",
        "exec": "Run a program with a leased, fenced browser: LEASEKEEPER_CDP_URL.",
        "mcp": "MCP server: tools for AI agents to use profiles, sessions and jobs.",
        "open": "Open a profile yourself, under a lease, in a visible browser.",
        "take": "Take control of a running browser; hand it back or release it.",
        "login": "Log in to a profile by hand, then put it and its jobs back.",
    },
    "Set up": {
        "init": "Create a small project that runs.",
        "apply": "Apply a fleet file, after showing the difference.",
        "settings": "Show each setting in force and where it comes from.",
        "tokens": "API tokens: list, create, revoke.",
        "secrets": "Encrypted passwords and keys in the store: list, set, rotate.",
        "db": "Check the store's schema, and migrate it.",
        "completion": "Print the script that makes Tab complete commands and ids.",
        "doctor": "Check this installation and its readiness for more workers.",
        "demo": "Run the demo: a small fleet, a local shop, real browsers.",
    },
    "Work": {
        "submit": "Submit one job by options, or many from a file.",
        "jobs": "List jobs, show one, cancel, requeue or approve it.",
        "runs": "List runs (attempts of jobs, other uses of profiles), show one.",
        "schedules": "Schedules, as in cron: list, show, pause, run now.",
        "dlq": "Dead jobs: list them, retry them, or drop them.",
        "webhooks": "Webhooks: list, show, replay; endpoints for events.",
        "bridge": "Take jobs from Redis lists, RabbitMQ or SQS; put results back.",
        "sweep": "One pass of housekeeping: expire, resolve, promote, fire, prune.",
    },
    "Fleet": {
        "profiles": "List profiles, show one, clear, quarantine or disable it.",
        "accounts": "List accounts, pause and resume them.",
        "proxies": "List proxies and their trouble; check one again.",
        "notes": "Notes on profiles and accounts: list, show, add.",
        "leases": "List who uses which profile, until when; revoke a lease.",
        "launchers": "Launchers (Multilogin, AdsPower …): their profiles; import them.",
        "workers": "List workers and when each last reported; drain one.",
        "pause": "Start nothing new: anywhere, in a pool, on an account or worker.",
        "resume": "Resume what `pause` paused.",
    },
    "Understand": {
        "why": "Why a job does not run or a profile is not available.",
        "reviews": "The inbox of what waits for a person: list, show, decide.",
        "events": "The audit log, newest first; --follow keeps watching.",
        "conflicts": "Which profiles and which pairs of tasks conflict most often.",
        "stats": "Current counts: jobs by state and reason, profiles, leases.",
    },
}
_EPILOG: Final = "\b\nExit codes:\n" + "\n".join(f"  {code:<4}{meaning}" for code, meaning in EXIT_CODES.items())


_OBJECTS_BEFORE_GC: Final = 100_000
INSTRUCTION: Final = "_LEASEKEEPER_COMPLETE"  # how a shell asks for completions; the name is click's


class Root(click.Group):
    """The top of the tree. Imports a noun's module when its command is used; the summaries are in this module."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click names it
        return [name for section in SECTIONS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = import_module(f"leasekeeper.cli.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101 - tells the type checker what every noun exports
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            raise click.UsageError(_no_such_command(args[0], self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click names it
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Caught before click sees it: click would report a reader that closed the pipe as a failure.
            ctx.exit(fail(error, as_json=False))

    def main(  # type: ignore[override]  # click's overloads of main say less than its code does
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command and leave the process with its documented exit code."""
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        try:
            code = super().main(args=arguments, prog_name=prog_name or "leasekeeper", **extra)
            sys.stdout.flush()
        except BaseException as error:  # noqa: BLE001 - the last handler: every error gets an exit code
            code = fail(error, as_json="--json" in arguments)
        sys.exit(code if isinstance(code, int) else 0)


def _no_such_command(name: str, known: Sequence[str]) -> str:
    close = nearest(name, known)
    hint = f"did you mean {close}?" if close else "leasekeeper --help lists them"
    return f"there is no command {name!r}; {hint}"


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from leasekeeper import __version__

        click.echo(f"leasekeeper {__version__}")
        ctx.exit()


@click.group(
    "leasekeeper",
    cls=Root,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--store",
    metavar="URL",
    help="Where leases and jobs live: sqlite:///FILE, postgresql://…, redis://… or the https://… of a server  "
    "[default: $LEASEKEEPER_STORE, "
    "the settings file, sqlite:///leasekeeper.db]",
)
@token_option
@config_option
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
@click.pass_context
def cli(ctx: click.Context, store: str | None) -> None:
    """Leases and an account-aware job queue for persistent browser profiles."""
    ctx.obj = store


def _open_streams() -> None:
    """Replace a closed stream (`>&-`) by /dev/null."""
    # Python has None for them, and the next file that is opened would take their place.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8"))


def main() -> NoReturn:
    """The `leasekeeper` program. Most of a command's time is imports and teardown, so both are kept short."""
    # Imports make many objects and no garbage: do not look for any until there are really many.
    gc.set_threshold(_OBJECTS_BEFORE_GC)
    _open_streams()
    code: object = 1
    try:
        if INSTRUCTION in os.environ:
            from leasekeeper.cli.completing import complete_for_shell

            complete_for_shell(cli.main)
        with interruptible():
            cli.main()
    except SystemExit as leaving:
        code = leaving.code
    except KeyboardInterrupt:  # while the answer to another one was being written
        code = 130
    # Stores are closed and the answer is written: what is left to free, the system frees faster.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)
