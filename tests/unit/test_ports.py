"""The port is what the product uses: no more operations than it calls, and as many as its header says."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import leasekeeper.ports
from leasekeeper.ports import Store

SOURCE = Path(leasekeeper.ports.__file__).parent
OPERATIONS = sorted(name for name, member in vars(Store).items() if callable(member) and not name.startswith("_"))


@cache
def called() -> frozenset[str]:
    """Methods that something outside of the stores calls on what it names a store."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        if path.is_relative_to(SOURCE / "stores"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and re.search(r"store\b", ast.unparse(node.value)):
                found.add(node.attr)
    return frozenset(found)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_of_the_port_has_a_caller(operation: str) -> None:
    assert operation in called()


def test_the_header_says_how_many_operations_there_are() -> None:
    assert f"`Store` is {len(OPERATIONS)} domain operations" in str(leasekeeper.ports.__doc__)
