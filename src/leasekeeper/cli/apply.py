"""`leasekeeper apply FILE`: apply a fleet file. Shows the difference first, then asks.

The store computes the difference twice, to show and to apply: the output at the end is what was applied.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from leasekeeper.cli.connection import missing, settings, with_store
from leasekeeper.cli.options import actor, output
from leasekeeper.cli.output import answer_json, encoded
from leasekeeper.cli.table import Screen, printable
from leasekeeper.core.fleet import Change, ChangeKind, Fleet, check_fleet, diff
from leasekeeper.errors import InputError

SIGNS: Final = {ChangeKind.ADD: ("+", "32"), ChangeKind.CHANGE: ("~", "33"), ChangeKind.REMOVE: ("-", "31")}
MAX_LINES: Final = 200
STDIN: Final = "-"
MAX_CHARACTERS: Final = 64 * 1024 * 1024


@click.command("apply")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show the difference.")
@click.option("--prune", is_flag=True, help="Remove what the file does not name. Never a profile in use.")
@click.option("--adopt", is_flag=True, help="Adopt directories with used profiles, without asking.")
@actor
@output
def command(
    file: str, yes: bool, dry_run: bool, prune: bool, adopt: bool, by: str, store: str | None, as_json: bool
) -> None:
    """Apply a fleet file (YAML; - is stdin), after showing the difference.

    Applying the same file again changes nothing. States, leases and jobs are never touched. Directories on this machine
    with profiles that were used before Leasekeeper are shown, and adopted if you agree.
    """
    from leasekeeper.cli.adoption import Adoption

    fleet = read_fleet(file)
    asking = not as_json and file != STDIN and sys.stdin.isatty() and sys.stdout.isatty()

    def applied(*, dry: bool) -> list[Change]:
        if dry and missing(settings(store).store) is not None:
            check_fleet(Fleet(), fleet, prune=prune)
            return diff(Fleet(), fleet, prune=prune)
        return with_store(store, lambda opened: opened.apply(fleet, actor=by, prune=prune, dry_run=dry), make=True)

    changes = applied(dry=True)
    adoption = Adoption.of(fleet, store, prune=prune)
    if not as_json:
        _show(changes)
    if changes and not dry_run:
        _agree(yes=yes, asking=asking)
        done = applied(dry=False)
        if not as_json and done != changes:
            click.echo("the store changed in the meantime; this is what was applied:")
            _show(done)
        changes = done
    if not as_json and changes:
        click.echo(f"dry run: {count(changes)} not applied" if dry_run else f"applied {count(changes)}")
    if not as_json:
        adoption.show()
    if not dry_run and adoption.agreed(adopt=adopt, asking=asking and not yes):
        adoption.adopt(store, by)
    if as_json:
        used = adoption.document()
        answer_json({"changes": encoded(changes), "applied": not dry_run, "used_directories": used})
    adoption.conclude(file, wanted=adopt and not dry_run, as_json=as_json)


def read_fleet(file: str) -> Fleet:
    """The fleet of a file, or of stdin."""
    from leasekeeper.wire import load_fleet, parse_fleet

    if file != STDIN and not Path(file).exists():
        raise InputError(f"there is no file {file}: name your fleet file; leasekeeper init writes one to begin with")
    if file != STDIN:
        return load_fleet(file)
    try:
        return parse_fleet(sys.stdin.buffer.read(MAX_CHARACTERS).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"stdin: byte {error.start} is not UTF-8") from None


def _agree(*, yes: bool, asking: bool) -> None:
    """Go on only if --yes was given or a person agrees."""
    if yes:
        return
    if not asking:
        raise InputError(
            "nothing was applied: there is no terminal to ask; use --yes to apply, or --dry-run to show the changes"
        )
    if not click.confirm("apply this?"):
        click.echo("nothing was applied")
        raise click.exceptions.Exit(130)


def _show(changes: Sequence[Change]) -> None:
    if not changes:
        click.echo("nothing to change")
        return
    screen = Screen.now()
    lines = [line for change in changes for line in difference(change, screen)]
    for line in lines[:MAX_LINES]:
        click.echo(line)
    if len(lines) > MAX_LINES:
        click.echo(screen.dim(f"… and {len(lines) - MAX_LINES:,} more lines; --dry-run --json shows all"))


def difference(change: Change, screen: Screen) -> list[str]:
    """`~ profile p1` and, indented, each field as old → new."""
    sign, colour = SIGNS[change.kind]
    lines = [screen.paint(f"{sign} {change.what} {printable(change.id)}", colour)]
    for name, (old, new) in change.fields.items():
        lines.append(f"    {name}: {_value(old)} → {_value(new)}")
    return lines


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_value(v)}" for k, v in value.items()) + "}" if value else "none"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]" if value else "none"
    return printable(str(value)) if value not in (None, "") else "none"


def count(changes: Sequence[Change]) -> str:
    """'12 changes (10 added, 2 changed)'."""
    verbs = {ChangeKind.ADD: "added", ChangeKind.CHANGE: "changed", ChangeKind.REMOVE: "removed"}
    parts = [f"{n:,} {verb}" for kind, verb in verbs.items() if (n := sum(c.kind is kind for c in changes))]
    return f"{len(changes):,} change{'s' if len(changes) != 1 else ''} ({', '.join(parts)})"
