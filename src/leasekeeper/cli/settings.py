"""`leasekeeper settings`: each setting in force and where it comes from. Secrets are not shown."""

from typing import TYPE_CHECKING

import click

from leasekeeper.cli.options import output

if TYPE_CHECKING:
    from leasekeeper.config import Effective, Settings


@click.command("settings")
@click.option("--changed", is_flag=True, help="Only those that are not at their default.")
@output
def command(changed: bool, store: str | None, as_json: bool) -> None:
    """Show each setting in force and its source: default, file, environment or argument (--store).

    The settings file is the one that --config or $LEASEKEEPER_CONFIG names, else leasekeeper.toml beside the SQLite
    file, else leasekeeper.toml in the working directory. The environment wins over the file. Settings that a program
    passes to connect() or App() are not shown here.
    """
    from leasekeeper import config
    from leasekeeper.cli.output import answer_json

    found = config.effective(store=store) if store is not None else config.effective()
    rows = [row for row in found.rows if not changed or row.source is not config.Source.DEFAULT]
    if as_json:
        file = str(found.file) if found.file else None
        answer_json({"file": file, "items": [_document(row) for row in rows]})
        return
    for line in _lines(found, rows):
        click.echo(line)


def _lines(found: "Settings", rows: list["Effective"]) -> list[str]:
    from datetime import UTC, datetime

    from leasekeeper.cli.table import Column, Screen, render_table
    from leasekeeper.config import Effective

    columns = (
        Column[Effective]("SETTING", "setting.name"),
        Column[Effective]("VALUE", shown, spare=2, least=24),
        Column[Effective]("UNIT", "setting.unit", spare=4),
        Column[Effective]("SOURCE", "source"),
    )
    head = f"settings file: {found.file}" if found.file else "settings file: none"
    if not rows:
        return [head, "every setting is at its default"]
    return [head, *render_table(columns, rows, datetime.now(UTC), Screen.now())]


def shown(row: "Effective") -> object:
    """The value without secrets: only that a secret is set, and addresses without credentials."""
    from leasekeeper.evidence.redact import REDACTED, Redactor

    value = row.value
    if row.setting.secret:
        return REDACTED if value else ""
    if isinstance(value, str):
        return Redactor().text(value)
    return value


def _document(row: "Effective") -> dict[str, object]:
    setting = row.setting
    return {
        "name": setting.name,
        "value": shown(row),
        "source": str(row.source),
        "unit": setting.unit,
        "default": setting.default,
        "variable": setting.variable,
        "meaning": setting.doc,
    }
