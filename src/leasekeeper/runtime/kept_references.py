"""Finds Playwright objects that a task has kept: a page or a context in a global would let another run, or a thread,
act in the browser of the next run.

Playwright's public objects wrap inner ones, which refer to their wrappers. Any other referrer means that one was kept.
"""

import gc
from collections.abc import Collection
from functools import partial
from types import FrameType
from typing import Any, Final

_INNER: Final = "_impl_obj"
# Attributes of an inner object that refer to its owner, the nearest first.
_OWNERS: Final = ("_browser_context", "_page", "_frame", "_parent", "_context", "_request", "_route")
# Types of objects that all contexts of a Playwright process share.
_SHARED: Final = ("Playwright", "BrowserType", "Selectors", "LocalUtils")
_OWN_CODE: Final = ("playwright.", "leasekeeper.")
_MAX_DEPTH: Final = 20


def kept_reference(context: Any, own: Collection[object]) -> str | None:
    """The type of a Playwright object of this context that was kept; None if only Playwright itself and the objects in
    `own` refer to any. Scans every object of the process twice, which takes about 20 ms; longer only if it found one.
    """
    found = None
    for generation in (1, 2):  # unreachable objects do not count; most of them are young
        gc.collect(generation)
        found = _find(context, own)
        if found is None:
            break
    return found


def _find(context: Any, own: Collection[object]) -> str | None:
    # No closure here may capture the context: its cell would count as a reference.
    wrappers = list(filter(partial(_belongs, getattr(context, _INNER, None)), _wrappers(type(context))))
    known = {id(wrappers), *map(id, own)}
    for wrapper in wrappers:
        inner = getattr(wrapper, _INNER, None)
        known |= {id(inner), id(getattr(inner, "__dict__", None))}
    referrers = gc.get_referrers(*wrappers)
    for each in referrers:
        # Playwright's sync API keeps the frame that called it last: by then that is the worker's own code.
        if isinstance(each, FrameType) and str(each.f_globals.get("__name__")).startswith(_OWN_CODE):
            known |= {id(each), id(each.f_locals)}
    keeper = next((each for each in referrers if id(each) not in known), None)
    if keeper is None:
        return None
    return next((type(one).__name__ for one in gc.get_referents(keeper) if one in wrappers), "object")


def _wrappers(one: type) -> list[Any]:
    """Every public object of Playwright in this process, found by its reference to its class."""
    base = one.__mro__[-2]
    classes, seen = [base], set[type]()
    while classes:
        each = classes.pop()
        if each not in seen:
            seen.add(each)
            classes += each.__subclasses__()
    return [each for each in gc.get_referrers(*seen) if isinstance(each, base)]


def _belongs(wanted: Any, wrapper: Any) -> bool:
    """Whether it belongs to this context, its browser, or another context of that browser. True if its owner is
    unknown."""
    inner: Any = getattr(wrapper, _INNER, None)
    parent = getattr(wanted, "_parent", None)
    browser = parent if type(parent).__name__ == "Browser" else wanted
    for _ in range(_MAX_DEPTH):
        if inner is wanted or inner is browser:
            return True
        if type(inner).__name__ == "BrowserContext" and getattr(inner, "_parent", None) is browser:
            return True
        if type(inner).__name__ in (*_SHARED, "BrowserContext", "Browser"):
            return False
        inner = next((owner for name in _OWNERS if (owner := getattr(inner, name, None)) is not None), None)
        if inner is None:
            return True
    return True
