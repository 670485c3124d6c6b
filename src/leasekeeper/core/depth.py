"""The maximum nesting of JSON that comes from outside: payloads, results, evidence.

Deeper JSON is refused on its way in, because every later reader, in whatever language, has to walk it.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

MAX_DEPTH: Final = 32


def too_deep(value: object, limit: int = MAX_DEPTH) -> bool:
    """Whether lists and objects are nested more than `limit` levels, a structure that contains itself included."""
    level = _containers([value])
    for _ in range(limit):
        level = _containers(item for outer in level for item in _items(outer))
    return bool(level)


def _containers(values: Iterable[object]) -> Collection[object]:
    """The lists and objects among the values, each once: what is shared must not be walked again and again."""
    return {id(value): value for value in values if isinstance(value, Mapping | list | tuple)}.values()


def _items(container: object) -> Iterable[object]:
    if isinstance(container, Mapping):
        return container.values()
    return container if isinstance(container, list | tuple) else ()
