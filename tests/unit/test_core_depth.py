"""How deep JSON is nested: counted without recursion, shared parts once, circles included."""

import pytest

from leasekeeper.core.depth import MAX_DEPTH, too_deep


def nested(levels: int, *, objects: bool) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"a": value} if objects else [value]
    return value


@pytest.mark.parametrize("objects", [True, False])
@pytest.mark.parametrize(
    ("levels", "deep"), [(0, False), (1, False), (MAX_DEPTH, False), (MAX_DEPTH + 1, True), (100_000, True)]
)
def test_levels_are_counted(levels: int, deep: bool, objects: bool) -> None:
    assert too_deep(nested(levels, objects=objects)) is deep


def test_tuples_and_empty_containers_count() -> None:
    assert too_deep(((),), limit=1)
    assert not too_deep(((),), limit=2)
    assert too_deep({"a": [{}]}, limit=2)


def test_a_structure_that_contains_itself_has_no_end() -> None:
    circle: list[object] = []
    circle += [circle, circle]
    assert too_deep(circle)


def test_what_is_shared_is_walked_once() -> None:
    value: object = 1
    for _ in range(MAX_DEPTH):
        value = [value, value]
    assert not too_deep(value)
