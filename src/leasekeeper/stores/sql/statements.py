"""Loads named statements from `.sql` files, and translates their parameters for a dialect.

A file has `-- name: x` headers, each followed by one statement. Parameters are `:name`; `IN :name[]` takes a list.
Nothing else is translated: no other text is ever put into a statement.
"""

import re
from importlib import resources
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_LIST: Final = re.compile(r"IN :(\w+)\[\]")
_PARAM: Final = re.compile(r"(?<![:\w]):(\w+)")


def load(package: str, *files: str) -> dict[str, str]:
    """All statements of the files, as written. Raises ValueError if two have the same name."""
    statements: dict[str, str] = {}
    for file in files:
        parts = _NAME.split(resources.files(package).joinpath(file).read_text(encoding="utf-8"))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            if name in statements:
                raise ValueError(f"{package}/{file}: statement {name} is there twice")
            statements[name] = text.strip().rstrip(";")
    return statements


def for_sqlite(text: str) -> str:
    """The statement for SQLite: a list is a JSON array."""
    return _LIST.sub(r"IN (SELECT value FROM json_each(:\1))", text)


def for_postgres(text: str) -> str:
    """The statement for PostgreSQL: a list is an array."""
    return _LIST.sub(r"= ANY(:\1)", text)


def for_one(text: str) -> str:
    """The statement for lists of one item each: it compares with `=`, which needs no list."""
    return _LIST.sub(r"= :\1", text)


def for_setting(text: str, name: str) -> str:
    """The statement that takes its list from a setting of the transaction with this name (PostgreSQL)."""
    return _LIST.sub(f"= ANY(CAST(nullif(current_setting('{name}', TRUE), '') AS text[]))", text)


def lists(text: str) -> tuple[str, ...]:
    """The parameters that take a list."""
    return tuple(_LIST.findall(text))


def positional(text: str, mark: str) -> tuple[str, tuple[str, ...]]:
    """The statement with `$1, $2, …` (or another mark) for its parameters, and their names in that order."""
    names: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"{mark}{names.setdefault(match.group(1), len(names) + 1)}"

    return _PARAM.sub(number, text), tuple(names)


def renamed(text: str, prefix: str) -> str:
    """The statement with another name for each parameter, so that several can be parts of one."""
    return _PARAM.sub(rf":{prefix}\1", text)
