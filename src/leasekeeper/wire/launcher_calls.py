"""Parses the calls of a launcher's API in a fleet file: the calls that exist, and the fields of each.

No value of them is a secret: `{token}` is filled in when the call is made. `browsers.keeper.launcher_calls` makes the
calls.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from leasekeeper.core.launchers import TOKEN_HOLE
from leasekeeper.wire.kinds import Flag, Integer, JsonObject, Number, Problems, Scalar, Text, Wrong, mistyped
from leasekeeper.wire.records import Field, MapOf, Record, at

MAX_CALLS_BYTES: Final = 16 * 1024
MAX_CONDITIONS: Final = 32

ADDRESS: Final = "an http or https address without user and password"
_SECRET_NAME = re.compile(
    r"passw|secret|token|credential|api[-_]?key|access[-_]?key|private[-_]?key|signature|cookie|jwt|auth(?!or)"
    r"|^(?:key|pwd)$|[-_]key$",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"(?:bearer|basic)\s+\S", re.IGNORECASE)


def check_address(text: str) -> str | None:
    """Why the address of an API is refused."""
    try:
        parts = urlsplit(text)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return f"must be {ADDRESS}"
    plain = "@" not in text and not parts.query and not parts.fragment and " " not in text
    return None if whole and plain else f"must be {ADDRESS}"


def check_launcher_profile(text: str) -> str | None:
    """Why a launcher's name of a profile is refused: a DevTools URL is shown to people: it must contain no secret."""
    if "://" not in text:
        return None
    try:
        parts = urlsplit(text)
    except ValueError:
        return "is not a URL that can be read"
    if "@" in parts.netloc:
        return f"must not hold a user or password; keep the secret in the launcher's token, and write {TOKEN_HOLE} here"
    for name, value in parse_qsl(parts.query):
        if _is_secret(name, value):
            return (
                f"seems to contain a secret in its query; keep it in the launcher's token, and write {TOKEN_HOLE} here"
            )
    return None


def _is_secret(name: str, value: str) -> bool:
    return TOKEN_HOLE not in value and bool(value) and bool(_SECRET_NAME.search(name) or _SCHEME.match(value))


class Conditions(Scalar):
    """What an answer must say: paths and their values, or a list of such alternatives."""

    rule = (
        "a condition on the answer (path: value, as status.code: 0), all of which must hold, or a list of alternatives"
    )

    def parse(self, value: object) -> Any:
        alternatives = value if isinstance(value, list | tuple) else [value]
        if not 1 <= len(alternatives) <= MAX_CONDITIONS:
            raise Wrong(f"must be {self.rule}")
        found = [self._one(each) for each in alternatives]
        return found if isinstance(value, list | tuple) else found[0]

    def _one(self, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise mistyped(self.rule, value)
        if not value or not all(isinstance(name, str) and name and _is_plain(wanted) for name, wanted in value.items()):
            raise Wrong(f"must be {self.rule}")
        return {name: list(wanted) if isinstance(wanted, tuple) else wanted for name, wanted in value.items()}

    def schema(self) -> dict[str, Any]:
        return {"type": ["object", "array"], "maxItems": MAX_CONDITIONS}


def _is_plain(wanted: object) -> bool:
    if isinstance(wanted, list | tuple):
        return bool(wanted) and all(_is_plain(each) and not isinstance(each, list | tuple) for each in wanted)
    return isinstance(wanted, str | int | float | bool)


class NoSecrets:
    """Like another kind, but a value with the name of a secret must be the launcher's own token."""

    def __init__(self, kind: "JsonObject | MapOf") -> None:
        self.kind = kind
        self.rule = kind.rule

    def read(self, value: object, where: str, problems: Problems) -> Any:
        found = self.kind.read(value, where, problems)
        for name in _secrets_in(found):
            problems.add(
                at(where, name),
                f"seems to contain a secret; keep it in the launcher's token, and write {TOKEN_HOLE} here",
            )
        return found

    def schema(self) -> dict[str, Any]:
        return self.kind.schema()


def _secrets_in(found: object) -> list[str]:
    match found:
        case dict():
            own = [name for name, value in found.items() if isinstance(value, str) and _is_secret(name, value)]
            return own + [name for value in found.values() for name in _secrets_in(value)]
        case list():
            return [name for value in found for name in _secrets_in(value)]
    return []


_CONDITIONS: Final = Conditions()
_HEADERS: Final = NoSecrets(
    MapOf(
        "headers by name",
        Text("the name of a header", maximum=64, pattern="[A-Za-z0-9-]+"),
        Text("text of at most 1024 printable characters", maximum=1024, minimum=0),
        32,
    )
)
_OBJECT: Final = NoSecrets(JsonObject(MAX_CALLS_BYTES, 8))


def _path_in_answer(name: str, doc: str, *, required: bool = False) -> Field:
    kind = Text("a path in the answer, as data.list; empty: the whole answer", maximum=256, minimum=0)
    return Field(name=name, kind=kind, doc=doc, required=required)


def _conditions(name: str, doc: str, *, required: bool = False) -> Field:
    return Field(name=name, kind=_CONDITIONS, doc=doc, required=required)


def _step(*own: Field) -> Record:
    """One request, and what its answers mean."""
    return Record(
        [
            Field(
                name="path",
                kind=Text("a path that begins with /", maximum=1024, pattern="/.*"),
                doc="of the request; braces are filled in, as {profile}",
                required=True,
            ),
            Field(
                name="method",
                kind=Text("GET, POST, PUT, PATCH or DELETE", maximum=8, pattern="GET|POST|PUT|PATCH|DELETE"),
                doc="absent: GET without a body, else POST",
            ),
            Field(name="query", kind=_OBJECT, doc="of the request, by name"),
            Field(name="body", kind=_OBJECT, doc="of the request, sent as JSON"),
            Field(name="headers", kind=_HEADERS, doc="beside those of every call"),
            Field(
                name="url",
                kind=Text(ADDRESS, maximum=512, check=check_address),
                doc="where this call goes; absent: to the launcher's url",
            ),
            _conditions("ok", "which answers mean success; absent: any 2xx"),
            *own,
        ]
    )


_START: Final = _step(
    Field(
        name="endpoint",
        kind=Text("a DevTools address, as {cdp_url} or ws://127.0.0.1:{data.port}", maximum=512),
        doc="where the browser is; braces are filled in from the answer",
        required=True,
    ),
    _conditions("busy", "which answers mean that the profile runs already"),
)
_STOP: Final = _step(_conditions("idle", "which answers mean that the profile did not run"))
_STATUS: Final = _step(
    _conditions("running", "which answers mean that the profile runs", required=True),
    _conditions("idle", "which answers mean that it does not; any other is no answer", required=True),
)
_LIST: Final = _step(
    _path_in_answer("items", "where the profiles are"),
    Field(name="id", kind=Text("a field of a profile", maximum=128), doc="has the profile's id", required=True),
    Field(name="name", kind=Text("a field of a profile", maximum=128), doc="has the profile's name"),
    Field(name="page_size", kind=Integer(1, 100_000), doc="how many one answer has; absent: all"),
)
_USERS: Final = _step(
    _path_in_answer("items", "where the users are", required=True),
    Field(name="user", kind=Text("a field of a user", maximum=128), doc="has the user's name", required=True),
)
_PLAN: Final = _step(_path_in_answer("cap", "where the number of browsers is that the plan allows", required=True))


class _Calls(Record):
    """All calls of a launcher. They are sent to the keeper of every browser that it opens."""

    def read(self, value: object, where: str, problems: Problems) -> dict[str, Any]:
        found = super().read(value, where, problems)
        if len(json.dumps(found).encode()) > MAX_CALLS_BYTES:
            problems.add(where, f"must take at most {MAX_CALLS_BYTES // 1024} KiB")
        return found


CALLS: Final = _Calls(
    [
        Field(name="start", kind=_START, doc="starts a profile"),
        Field(name="stop", kind=_STOP, doc="stops a profile"),
        Field(name="status", kind=_STATUS, doc="whether a profile runs"),
        Field(name="list", kind=_LIST, doc="the profiles that the launcher has"),
        Field(name="users", kind=_USERS, doc="who has a profile open"),
        Field(name="plan", kind=_PLAN, doc="how many browsers the plan allows"),
        Field(name="headers", kind=_HEADERS, doc="of every call, in place of Authorization: Bearer {token}"),
        _conditions("limited", "which answers mean too many calls, or no more browsers now"),
        Field(name="confirm_seconds", kind=Number(0, 60), doc="idle counts when it was said twice, so far apart"),
        Field(name="idle_seconds", kind=Number(1, 300), doc="how long a profile may take to become idle"),
        Field(name="endpoint_stays", kind=Flag(), doc="the DevTools address outlives the browser and proves nothing"),
    ]
)
