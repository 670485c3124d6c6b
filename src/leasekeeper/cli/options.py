"""Options that many commands share, and the group that lists when no verb is given.

Filters have short names on the command line (`--account`) and are passed on by field (`account_id`).
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from leasekeeper.cli.completing import NAMED_BY, ids
from leasekeeper.cli.config_option import config_option, token_option
from leasekeeper.lists import LISTS, MAX_IN_PAGE

F = TypeVar("F", bound=Callable[..., Any])

MAX_CHARACTERS_OF_NOTE = 2_000
WATCH_SECONDS: Final = 2.0
QUIET: Final = "leasekeeper.quiet"
WATCH: Final = "leasekeeper.watch"


class Noun(click.Group):
    """A group whose first word may be left out: `leasekeeper jobs --state dead` lists."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click names it
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Without a word a shell wants to know which verbs there are.
        lists = args[0].startswith("-") and args[0] not in ctx.help_option_names if args else not ctx.resilient_parsing
        if lists:
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if not incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        lister = self.commands["list"]
        return lister.shell_complete(click.Context(lister, info_name="list", parent=ctx), incomplete)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the options of the list beside the verbs: people look for them here."""
        lister = self.commands["list"]
        own = click.Context(lister, info_name="list", parent=ctx)
        shown = [record for option in lister.get_params(own) if (record := option.get_help_record(own))]
        with formatter.section("Options of the list"):
            formatter.write_dl(shown)
        self.format_commands(ctx, formatter)


def noun(name: str, text: str) -> Noun:
    """The group of one noun. `text` is its help."""
    return Noun(name, help=f"{text}\n\nWithout a verb: list.", subcommand_metavar="[list | VERB] [OPTIONS] [ARGS]...")


def sessions_option(usual: int) -> Callable[[F], F]:
    """--sessions, for commands that run browsers for other programs."""
    return click.option(
        "--sessions",
        metavar="N",
        type=click.IntRange(0, 1000),
        default=usual,
        show_default=True,
        help="Run up to N browsers for programs that ask for one: POST /v1/sessions.",
    )


def store_option(command: F) -> F:
    """--store, --token and --config, here or before the command."""
    return click.option(
        "--store",
        metavar="URL",
        callback=lambda ctx, _, value: value if value is not None else ctx.find_root().obj,
        help="The store's URL; may also be given before the command.",
    )(token_option(config_option(command)))


def output(command: F) -> F:
    """--json and --store: every command that prints an answer."""
    json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
    return json_option(store_option(command))


def paging(command: F) -> F:
    """What every list has: --limit, --after, --quiet and --watch."""
    limit = click.option(
        "--limit",
        metavar="N",
        type=click.IntRange(1, MAX_IN_PAGE),
        default=50,
        show_default=True,
        help="Maximum number to show.",
    )
    after = click.option(
        "--after", metavar="KEY", help="Continue a list after this key, which the page before printed."
    )
    quiet = click.option(
        "--quiet",
        "-q",
        is_flag=True,
        expose_value=False,
        callback=_keep(QUIET),
        help="Print whole ids only, one per line: for pipes.",
    )
    watch = click.option(
        "--watch",
        is_flag=False,
        flag_value=str(WATCH_SECONDS),
        metavar="[SECONDS]",
        type=click.FloatRange(0.2, 3600),
        expose_value=False,
        callback=_keep(WATCH),
        help=f"Refresh the list until Ctrl-C, by default every {WATCH_SECONDS:g} s.",
    )

    @wraps(command)
    def page(*arguments: Any, **options: Any) -> None:
        every = click.get_current_context().meta.get(WATCH)
        if every is None:
            command(*arguments, **options)
            return
        from leasekeeper.cli.watching import refresh_until_interrupted

        refresh_until_interrupted(lambda: command(*arguments, **options), every)

    return limit(after(quiet(watch(page))))  # type: ignore[return-value]  # takes and returns what the command does


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def keep(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        ctx.meta[name] = value

    return keep


def is_quiet() -> bool:
    """Whether only ids are to be printed."""
    ctx = click.get_current_context(silent=True)
    return bool(ctx and ctx.meta.get(QUIET))


def filters(kind: type, **fields: str) -> Callable[[F], F]:
    """One option per filter of a kind's list: `account="account_id"`. Its values are declared with the list."""

    def decorate(command: F) -> F:
        for name, field in reversed(fields.items()):
            choices = LISTS[kind].filter(field).choices
            command = click.option(
                f"--{name}",
                field,
                type=click.Choice(choices) if choices else str,
                metavar=None if choices else name.upper(),
                shell_complete=ids(NAMED_BY[field]) if field in NAMED_BY else None,
                help=f"Only those with this {name}.",
            )(command)
        return command

    return decorate


def given(where: Mapping[str, str | None]) -> dict[str, str]:
    """The filters that were given."""
    return {field: value for field, value in where.items() if value is not None}


def actor(command: F) -> F:
    """--by: whose name the audit log gets."""
    return click.option(
        "--by",
        callback=lambda _ctx, _param, value: value or os_user(),
        help="Who decides.  [default: the OS user]",
    )(command)


def note(command: F) -> F:
    """--note: an unexplained decision is not accepted."""
    return click.option("--note", required=True, callback=_explained, help="Why, for those who read it later.")(command)


def note_text_option(command: F) -> F:
    """--note: of a note, what it says."""
    return click.option("--note", required=True, callback=_explained, help="What it says.")(command)


def _explained(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("say why: an unexplained decision is not accepted")
    if len(value) > MAX_CHARACTERS_OF_NOTE:
        raise click.BadParameter(f"has {len(value):,} characters; the maximum is {MAX_CHARACTERS_OF_NOTE:,}")
    return value


def os_user() -> str:
    """The name of the OS user who runs the command; the user's number if it has no name."""
    import getpass
    import os

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}"
