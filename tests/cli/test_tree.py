"""The tree of commands: what it costs to ask for help, and that help, docs and modules agree."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from leasekeeper.cli import SECTIONS, cli
from leasekeeper.cli.exit_codes import EXIT_CODES
from leasekeeper.cli.reference import reference
from tests.cli.workplace import Workplace, environment, process

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "asyncio",
    "sqlite3",
    "yaml",
    "psycopg",
    "json",
    "leasekeeper.core",
    "leasekeeper.stores",
    "leasekeeper.wire",
)
NAMES = [name for section in SECTIONS.values() for name in section]


def imported_by(*arguments: str) -> set[str]:
    code = (
        "import sys\n"
        "from leasekeeper.cli import cli\n"
        "try:\n    cli.main()\n"
        "except SystemExit:\n    pass\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


def test_help_imports_nothing_heavy() -> None:
    assert imported_by("--help").isdisjoint(HEAVY)


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_opens_nothing(name: str) -> None:
    assert imported_by(name, "--help").isdisjoint({"asyncio", "sqlite3", "yaml", "psycopg"})


def test_a_command_on_sqlite_imports_neither_yaml_nor_psycopg(place: Workplace) -> None:
    modules = imported_by("--store", place.url, "jobs")
    assert modules.isdisjoint({"yaml", "psycopg", "http.client", "importlib.metadata"})
    assert "sqlite3" in modules


def commands(group: click.Group, ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield f"{ctx.command_path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, click.Context(command, info_name=name, parent=ctx))


ALL = dict(commands(cli, click.Context(cli, info_name="leasekeeper")))


def test_every_command_and_option_has_a_help_text() -> None:
    silent = [path for path, command in ALL.items() if not command.help]
    for path, command in ALL.items():
        silent += [
            f"{path} {option.name}" for option in command.params if isinstance(option, click.Option) and not option.help
        ]
    assert silent == []


def test_whatever_answers_can_answer_in_json() -> None:
    plain = [
        path
        for path, command in ALL.items()
        if not isinstance(command, click.Group) and "as_json" not in {parameter.name for parameter in command.params}
    ]
    # These run something for as long as it takes; what came of it the lists tell.
    assert plain == [
        "leasekeeper up",
        "leasekeeper worker",
        "leasekeeper server",
        "leasekeeper exec",
        "leasekeeper mcp",
        "leasekeeper open",
        "leasekeeper login",
        "leasekeeper completion",
        "leasekeeper demo",
    ]


def test_every_decision_asks_for_a_note() -> None:
    decisions = [path for path, command in ALL.items() if {"by", "note"} <= {p.name for p in command.params}]
    decisions.remove("leasekeeper login")  # asks for it when it is known what there is to decide
    decisions.remove("leasekeeper pause")  # without anything to pause it lists, and then needs none
    assert len(decisions) == 37
    for path in decisions:
        (note,) = [parameter for parameter in ALL[path].params if parameter.name == "note"]
        assert note.required, path


def test_help_lists_the_commands_and_the_exit_codes(empty: Workplace) -> None:
    text = empty.text("--help")
    assert [name for name in NAMES if f"\n  {name} " not in text] == []
    assert [meaning for meaning in EXIT_CODES.values() if meaning not in text] == []


def test_the_reference_page_is_what_the_program_says() -> None:
    page = ROOT / "docs" / "reference" / "cli.md"
    assert page.read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_the_reference_names_every_command_and_every_exit_code() -> None:
    page = reference()
    assert [path for path in ALL if f"# {path}\n" not in page] == []
    assert [code for code in EXIT_CODES if f"| {code} |" not in page] == []


def test_an_unknown_command_suggests_the_one_that_was_meant(empty: Workplace) -> None:
    assert "did you mean profiles?" in empty.fails(2, "profile")
    assert "leasekeeper --help lists them" in empty.fails(2, "xyzzy")


def test_the_version_is_the_package_s() -> None:
    done = process("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("leasekeeper 0.")
