"""A storage state that Playwright wrote: cookies, and what origins stored. Checked completely before anything is
leased.

Its values are a login: no message repeats them.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

_SAME_SITE: Final = ("Strict", "Lax", "None")
# The fields of a cookie and their types. Unknown fields, of other versions of Playwright, are ignored.
_TEXTS: Final = ("name", "value", "domain", "path")
_FLAGS: Final = ("httpOnly", "secure")
_SIMPLE: Final = ("origin", "localStorage")
_KEPT: Final = (*_TEXTS, *_FLAGS, "expires", "sameSite", "partitionKey")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageState:
    """The session to put into a browser: cookies as `add_cookies` takes them, origins as Playwright wrote them."""

    cookies: tuple[Mapping[str, Any], ...]
    origins: tuple[Mapping[str, Any], ...]

    def __repr__(self) -> str:
        return f"StorageState({len(self.cookies)} cookies, {len(self.origins)} origins)"

    def __len__(self) -> int:
        return len(self.cookies) + len(self.origins)

    @property
    def databases(self) -> bool:
        """Whether an origin has more than localStorage: IndexedDB, files of its own."""
        return any(value for origin in self.origins for name, value in origin.items() if name not in _SIMPLE)


def parse_state(data: bytes) -> StorageState | None:
    """The state; None if this is no storage state at all. Raises ValueError with the fault of an invalid one."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("cookies"), list):
        return None
    origins = found.get("origins", [])
    if not isinstance(origins, list):
        return None
    problems = [*_each("cookie", found["cookies"], _wrong_cookie), *_each("origin", origins, _wrong_origin)]
    if problems:
        raise ValueError(problems[0])
    cookies = tuple({name: cookie[name] for name in _KEPT if name in cookie} for cookie in found["cookies"])
    return StorageState(cookies=cookies, origins=tuple(origins))


def _each(what: str, values: list[Any], wrong: Any) -> Iterator[str]:
    for number, value in enumerate(values, 1):
        problem = wrong(value) if isinstance(value, dict) else "is no object"
        if problem:
            yield f"{what} {number} of {len(values):,} {problem}"


def _wrong_cookie(cookie: dict[str, Any]) -> str:
    for name in _TEXTS:
        if not isinstance(cookie.get(name), str):
            return f"has no {name}"
    if not cookie["name"] or not cookie["domain"] or not cookie["path"].startswith("/"):
        return "has an empty name or domain, or a path that does not begin with /"
    if any(not isinstance(cookie.get(name, False), bool) for name in _FLAGS):
        return "says neither true nor false for httpOnly or secure"
    if not _is_number(cookie.get("expires", -1)):
        return "has no number in expires"
    return "" if cookie.get("sameSite", "Lax") in _SAME_SITE else f"has no sameSite of {', '.join(_SAME_SITE)}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _wrong_origin(origin: dict[str, Any]) -> str:
    if not _is_origin(origin.get("origin")):
        return "has no origin such as https://shop.test"
    stored = origin.get("localStorage", [])
    if not isinstance(stored, list) or not all(_is_pair(each) for each in stored):
        return "has a localStorage that is no list of names and values"
    databases = origin.get("indexedDB", [])
    if not isinstance(databases, list) or not all(isinstance(each, dict) for each in databases):
        return "has an indexedDB that is no list of databases"
    return ""


def _is_origin(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.query
    except ValueError:
        return False


def _is_pair(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("value"), str)
