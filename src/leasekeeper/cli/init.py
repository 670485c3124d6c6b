"""`leasekeeper init`: a small project that runs, in a folder of its own. Overwrites nothing, asks nothing."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from leasekeeper.cli.options import output
from leasekeeper.errors import InputError

FILES: Final = ("tasks.py", "fleet.yaml", "leasekeeper.toml", ".gitignore")
# An existing file is not changed; the output says what to add.
_KEPT: Final = ".gitignore"
NEXT: Final = (
    "leasekeeper apply fleet.yaml",
    "leasekeeper up tasks:app",
    "leasekeeper submit read_title --account example",
)
# Settings that would lead the new project's commands to another project's store.
_ELSEWHERE: Final = ("LEASEKEEPER_STORE", "LEASEKEEPER_CONFIG", "LEASEKEEPER_DATA_DIR")


@click.command("init")
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(file_okay=False, path_type=Path))
@output
def command(folder: Path, store: str | None, as_json: bool) -> None:
    """Create a small project that runs: tasks.py with one task, fleet.yaml, leasekeeper.toml and .gitignore.

    DIR is created if it does not exist; the default is the current folder. Files that exist are never overwritten. With
    --store, that is the project's store, instead of an SQLite file in the folder.
    """
    from leasekeeper.cli.output import answer_json

    written = write_project(folder, store)
    notes = _notes(written)
    if as_json:
        answer_json({"folder": str(folder.absolute()), "written": written, "next": list(NEXT), "notes": notes})
        return
    click.echo(f"wrote {', '.join(written)} in {folder.absolute()}")
    for note in notes:
        click.echo(f"  {note}")
    click.echo("next:" if folder.resolve() == Path.cwd() else f"next, after cd {shlex.quote(str(folder))}:")
    for line in NEXT:
        click.echo(f"  {line}{'   # in another terminal' if line == NEXT[-1] else ''}")


def write_project(folder: Path, store: str | None) -> list[str]:
    """Write the files that are missing. Raises InputError, before anything is written, if a file is in the way."""
    there = [name for name in FILES if os.path.lexists(folder / name) and name != _KEPT]
    if there:
        raise InputError(f"nothing was written: {folder.absolute()} has {_and(there)} already; name another folder")
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if not os.path.lexists(folder / name):
                with (folder / name).open("x", encoding="utf-8") as file:
                    file.write(content(name, store))
                if store is not None and name == "leasekeeper.toml":
                    (folder / name).chmod(0o600)  # the store's URL may contain a password
                written.append(name)
    except OSError as error:
        done = f"{_and(written)} was written, then " if written else ""
        raise InputError(f"{done}{error.filename or folder} could not be written: {error.strerror}") from None
    return written


def content(name: str, store: str | None = None) -> str:
    """A file of the project, for this store."""
    from importlib.resources import files

    text = (files("leasekeeper.cli") / "project" / name.removeprefix(".")).read_text(encoding="utf-8")
    if store is None or name != "leasekeeper.toml":
        return text
    import json

    from leasekeeper.stores import absolute

    return text.replace('"sqlite:///leasekeeper.db"', json.dumps(absolute(store), ensure_ascii=False))


def _notes(written: Sequence[str]) -> list[str]:
    """What a person still has to do before the first run."""
    from leasekeeper.cli.find_browser import installed_browser

    notes = []
    if _KEPT not in written:
        notes.append("your .gitignore is as it was; add to it: leasekeeper.db* leasekeeper-data/")
    try:
        installed_browser()
    except InputError as missing:
        notes.append(missing.message)
    notes += [f"{name} is set, and wins over leasekeeper.toml: unset it" for name in _ELSEWHERE if os.environ.get(name)]
    return notes


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
