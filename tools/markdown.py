"""Markdown of the generated pages."""

import inspect
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def page(title: str, *parts: str) -> str:
    """A page that says where it comes from."""
    made = "<!-- Written by `make docs` from the program itself. Change the code or tools/docs.py, not this page. -->"
    return "\n\n".join([f"# {title}", made, *(part.strip("\n") for part in parts)]) + "\n"


def code(words: Iterable[object]) -> str:
    """Words as code, separated by commas."""
    return ", ".join(f"`{word}`" for word in words)


def summary(thing: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
