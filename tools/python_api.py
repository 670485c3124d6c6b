"""docs/reference/python.md: the public names, from their own signatures and docstrings."""

import ast
import inspect
from enum import StrEnum
from pathlib import Path
from typing import Final

import leasekeeper
from tools.markdown import code, page, summary, table

SOURCE: Final = Path(leasekeeper.__file__).parent


def python_api() -> str:
    """The public names, from their own signatures and docstrings."""
    nodes = [
        node
        for name in ("client", "sync_lease", "sync_browser", "runtime/leased_browser")
        for node in ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8")).body
    ]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    calls = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    shown = ["## connect", f"`async with {_call(calls['connect'])} as client:`", summary(leasekeeper.connect)]
    for name, handle in (("Client", "client"), ("HeldLease", "lease"), ("LeasedBrowser", "browser")):
        shown += [f"## {name}", _text(getattr(leasekeeper, name)), _methods(classes[name], handle)]
    shown += ["## lease", f"`with leasekeeper.{_call(calls['lease'])} as lease:`", summary(leasekeeper.lease)]
    shown += ["## SyncLease", _text(leasekeeper.SyncLease), _methods(classes["SyncLease"], "lease")]
    shown += ["## browser", f"`with leasekeeper.{_call(calls['browser'])} as browser:`", summary(leasekeeper.browser)]
    shown += ["## SyncBrowser", _text(leasekeeper.SyncBrowser), _methods(classes["SyncBrowser"], "browser")]
    described = ("Client", "HeldLease", "LeasedBrowser", "SyncBrowser", "SyncLease", "browser", "connect", "lease")
    others = [name for name in leasekeeper.__all__ if name not in described]
    return page(
        "Python",
        "```python\nfrom leasekeeper import connect\n```",
        *shown,
        "## Other names",
        table(["name", "what"], [(f"`leasekeeper.{name}`", _what(getattr(leasekeeper, name))) for name in others]),
        "Everything else that a store can do is in `client.store`: the [port](../../src/leasekeeper/ports.py), with\n"
        "the guarantees of each operation. Fields of records are in [core](../../src/leasekeeper/core).",
    )


def _text(thing: object) -> str:
    return inspect.getdoc(thing) or ""


def _what(thing: object) -> str:
    """What a public name is; for an enum without a docstring, its values."""
    if isinstance(thing, type) and issubclass(thing, StrEnum) and thing.__doc__ in (None, StrEnum.__doc__):
        return f"One of {code(thing)}."
    return summary(thing)


def _call(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ").replace("=", " = ")
    return f"{node.name}({arguments})"


def _methods(node: ast.ClassDef, handle: str) -> str:
    rows = []
    for item in node.body:
        if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) or item.name.startswith("_"):
            continue
        marks = {decorator.id for decorator in item.decorator_list if isinstance(decorator, ast.Name)}
        text = " ".join((ast.get_docstring(item) or "").split())
        if "property" in marks:
            rows.append((f"`{handle}.{item.name}`", text or f"The {ast.unparse(item.returns or item)} itself."))
        else:
            how = "async with " if "asynccontextmanager" in marks else "await "
            plain = "with " if "contextmanager" in marks else ""
            how = how if isinstance(item, ast.AsyncFunctionDef) else plain
            rows.append((f"`{how}{handle}.{_call(item)}`", text))
    return table(["call", "what"], rows)
