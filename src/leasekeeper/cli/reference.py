"""The page docs/reference/cli.md, made from the tree of commands: `reference()` walks it.

A test pins the page, so a changed help text and its page are committed together.
"""

from collections.abc import Iterator

import click

from leasekeeper.cli import SECTIONS, cli
from leasekeeper.cli.exit_codes import EXIT_CODES

_EVERYWHERE = frozenset({"store", "config", "as_json"})
_HEAD = """# The command line

<!-- Written by `make docs` from the program itself. Change the help texts, not this page. -->

`leasekeeper NOUN VERB`. A noun alone lists. Tables are for people: they fit the terminal; where the output is
not a terminal, nothing is shortened or coloured (`NO_COLOR` turns colours off everywhere). `--json` is for
programs: one JSON document on stdout; a list is `{"items": […], "after": KEY}`, where `after`
continues it and null ends it; an error is `{"error": {"code", "message", "problems", "data"}}` on stderr
([errors](errors.md)). Fields of records and of `why` are those of [port.schema.json](port.schema.json), without
payloads and without the query of webhook addresses; `why` has the same in sentences under `text`.

Every command that answers takes `--json` (all but the long-running `demo`, `up`, `worker`, `server`, `open`,
`login`), and all but `demo` take `--store URL` and `--config FILE`, which may also stand before the command. Without
`--store` the store is that of the environment variable `LEASEKEEPER_STORE`, else of the [settings file](settings.md),
else `sqlite:///leasekeeper.db`. Tab completes commands, options and ids of the store: `leasekeeper completion bash`
prints the script for that shell, and so for `zsh` and `fish`.
"""


def reference() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_exit_codes(), *_commands()]).rstrip() + "\n"


def _exit_codes() -> Iterator[str]:
    yield from ("## Exit codes", "", "| code | meaning |", "|---|---|")
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    yield ""


def _commands() -> Iterator[str]:
    root = click.Context(cli, info_name="leasekeeper")
    for title, names in SECTIONS.items():
        yield from (f"## {title}", "")
        for name in names:
            command = cli.get_command(root, name)
            if command is not None:
                yield from _command(command, click.Context(command, info_name=name, parent=root), "###")


def _command(command: click.Command, ctx: click.Context, heading: str) -> Iterator[str]:
    yield from (f"{heading} {ctx.command_path}", "")
    yield from (_paragraphs(command.help or ""), "")
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            verb = command.get_command(ctx, name)
            if verb is not None:
                yield from _command(verb, click.Context(verb, info_name=name, parent=ctx), heading + "#")
        return
    yield from ("```", f"{ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}", "```", "")
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    shown = [option for option in options if option.name not in _EVERYWHERE]
    records = [record for option in shown if (record := option.get_help_record(ctx)) is not None]
    if records:
        yield from ("| option | meaning |", "|---|---|")
        yield from (f"| `{_in_table(names)}` | {_in_table(text)} |" for names, text in records)
        yield ""


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _in_table(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
