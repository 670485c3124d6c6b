"""URLs of Redis stores: `redis://`, `rediss://` (TLS), `redis+unix://`, and `redis+sentinel://` (`rediss+sentinel://`).

`redis+sentinel://:PASSWORD@host:26379,host:26379/NAME/DATABASE` names sentinels and the primary that they know as NAME.
Nothing here connects to anything.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis

from leasekeeper.errors import InputError, Problem

DURABILITY: Final = "durability"
SENTINEL_PASSWORD: Final = "sentinel_password"  # noqa: S105 - the name of a parameter
SENTINEL_PORT: Final = 26379
SCHEMES: Final = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_OURS: Final = (DURABILITY, SENTINEL_PASSWORD)
_NOT_UNDERSTOOD: Final = (
    "its port, its database or a parameter is not valid; a password has to be written with %5B for [, %5D for ]"
)
_SENTINEL_FORM: Final = "must be redis+sentinel://:PASSWORD@HOST:26379,HOST:26379/NAME/DATABASE; NAME is the primary's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentinels:
    """The sentinels to ask for the primary, and the parts of the primary's URL."""

    addresses: tuple[tuple[str, int], ...]
    name: str
    tls: bool
    password: str | None = field(repr=False)
    _login: str = field(repr=False)
    _rest: str = field(repr=False)

    def url_of(self, host: str, port: int) -> str:
        """The URL of one server of the set."""
        place = f"[{host}]" if ":" in host else host
        return f"{'rediss' if self.tls else 'redis'}://{self._login}{place}:{port}{self._rest}"


def sentinels(url: str) -> Sentinels | None:
    """The sentinels that a URL names; None if it names a server. Raises ValueError if it is not understood."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        return None
    login, at, hosts = parts.netloc.rpartition("@")
    name, _, database = parts.path.strip("/").partition("/")
    if not name or "/" in database:
        raise ValueError(_SENTINEL_FORM)
    return Sentinels(
        addresses=tuple(_addresses(hosts)),
        name=unquote(name),
        tls=SCHEMES[parts.scheme] == "rediss",
        password=query(url).get(SENTINEL_PASSWORD),
        _login=login + at,
        _rest=f"/{database}{f'?{parts.query}' if parts.query else ''}",
    )


def _addresses(hosts: str) -> Iterator[tuple[str, int]]:
    for place in hosts.split(","):
        one = urlsplit(f"//{place}")
        if not one.hostname:
            raise ValueError(_SENTINEL_FORM)
        yield one.hostname, one.port or SENTINEL_PORT


def query(url: str) -> dict[str, str]:
    """The parameters of a URL."""
    return dict(parse_qsl(urlsplit(url).query))


def clean_url(url: str) -> str:
    """The URL of one server as the client library wants it: without parameters of ours."""
    parts = urlsplit(url)
    rest = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name not in _OURS])
    scheme = "unix" if parts.scheme == "redis+unix" else parts.scheme
    return f"{scheme}://{parts.netloc}{parts.path}{f'?{rest}' if rest else ''}"


def check_url(url: str) -> None:
    """Raise InputError for a URL that cannot be used. Connects to nothing."""
    try:
        durability = query(url).get(DURABILITY)
        named = sentinels(url)
    except ValueError as error:
        known = _SENTINEL_FORM if str(error) == _SENTINEL_FORM else _NOT_UNDERSTOOD
        raise InputError("the store's URL is not usable", [Problem("store", known)]) from None
    try:
        one = named.url_of(*named.addresses[0]) if named else url
        redis.ConnectionPool.from_url(clean_url(one)).make_connection()  # connects to nothing yet
    except (ValueError, TypeError):  # the error's text is not shown: it quotes the URL, maybe a part of a password
        raise InputError("the store's URL is not usable", [Problem("store", _NOT_UNDERSTOOD)]) from None
    if durability is not None and durability != "none":
        raise InputError("the store's URL is not usable", [Problem("store", "durability must be none, or left out")])


def location(url: str) -> str:
    """Host and database of a URL, without user and password."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "redis+unix":
            return unquote(parts.path)
        if parts.scheme in SCHEMES:
            return f"{parts.netloc.rpartition('@')[2]}{parts.path}"
        return f"{parts.hostname or 'localhost'}{f':{parts.port}' if parts.port else ''}{parts.path}"
    except ValueError:
        return "the given URL"


def redact(url: str, text: str) -> str:
    """The text without the URL's passwords."""
    try:
        secrets = (urlsplit(url).password, query(url).get(SENTINEL_PASSWORD))
    except ValueError:
        return re.sub(r"://[^@\s]*@", "://…@", text)
    for secret in secrets:
        text = text.replace(secret, "…") if secret else text
    return text
