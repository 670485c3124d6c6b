"""Secrets out of text, URLs and headers, before anything is stored.

Two nets: secrets that somebody named (a proxy's password) are found wherever they stand, also URL-encoded; the rest
is found by its shape (key=value pairs, bearer tokens, JWTs, card numbers). Redacting twice changes nothing more.
Shapes are a net with holes: what must not leak has to be named, or not be stored.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, quote_plus

REDACTED: Final = "[redacted]"
SHORTEST_SECRET: Final = 4
MOST_CHARACTERS: Final = 1_000_000
# As many as the keeper keeps of an address.
MOST_URL: Final = 2_000
# Of what a task says about its end: records, events and reviews repeat it.
MOST_MESSAGE: Final = 2_000
# Of what is cut afterwards so many times as much is looked through for shapes: redaction makes it shorter.
_AHEAD: Final = 10

_WORDS: Final = (
    "passw(?:or)?d|passwd|passphrase|pwd|secret|token|api[-_]?key|apikey|access[-_]?key|private[-_]?key|credential"
    "|session[-_]?id|sessid|csrf|xsrf|otp|auth[-_]?code|signature"
)
_SENSITIVE_KEY = re.compile(
    rf"{_WORDS}|^(?:sid|sig|code|state|key|auth|jwt|pass|session|nonce|ticket|assertion)$", re.IGNORECASE
)
_SENSITIVE_HEADER = re.compile(rf"{_WORDS}|auth|cookie|session", re.IGNORECASE)
_TOKEN_LIKE = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_.~+/=-]{24,}")
_SECRET_SEGMENT = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_=~-]{40,}")

_URL = re.compile(r"\b[a-z][a-z0-9+-]{1,14}://[^\s\"'<>`{}|\\^]+", re.IGNORECASE)
# A value in quotes (also one whose end was cut off, also escaped inside other JSON) goes as a whole.
_QUOTED: Final = r"\\\"[^\"\\\n]*(?:\\\")?|\"(?:[^\"\\\n]|\\.)*\"?|'[^'\n]*'?"
_HEADER_LINE = re.compile(
    rf"\b((?:proxy-)?authorization\b\\?[\"']?\s{{0,3}}[:=]>?\s{{0,3}}|(?:set-)?cookie\b\\?[\"']?\s{{0,3}}[:=]>?\s{{0,3}})"
    rf"({_QUOTED}|[^\r\n]+)",
    re.IGNORECASE,
)
_PAIR = re.compile(
    rf"((?:{_WORDS})[\w-]{{0,30}}\\?[\"']?\s{{0,3}}[:=]>?\s{{0,3}})({_QUOTED}|\[redacted\]|[^\s,;&\"'<>)}}\]]+)",
    re.IGNORECASE,
)
# What a task typed into a form: Playwright's call logs repeat it, and so do the fields themselves.
_TYPED = re.compile(r"\b(fill|type|press_sequentially|insert_text)\((?=[^\n]{0,200}[\"'])[^\n]*")
_FIELD = re.compile(r"\b(value=)(\"[^\"\n]*\"?|'[^'\n]*'?)")
_SCHEME = re.compile(r"\b(bearer|basic)(\s{1,3})[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?")
_KNOWN = re.compile(
    r"(?<![\w-])(?:sk|pk|rk)[-_](?:live|test|proj|ant)?[-_]?[A-Za-z0-9_-]{16,}"
    r"|(?<!\w)(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza)[A-Za-z0-9_-]{12,}"
    r"|(?<!\w)whsec_[A-Za-z0-9+/=_-]{12,}"
)
_DIGITS = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])")


class Redactor:
    """Takes secrets out of what is about to be stored. `secrets` are found wherever they stand."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms: set[str] = set()
        self._exact: re.Pattern[str] | None = None
        self.add(*secrets)

    def add(self, *secrets: str) -> None:
        """Name more secrets. Those under four characters cannot be told from ordinary text and are left out."""
        for secret in secrets:
            if len(secret) >= SHORTEST_SECRET:
                self._forms |= {secret, quote(secret, safe=""), quote(secret), quote_plus(secret)}
                self._forms.add(json.dumps(secret)[1:-1])
        if self._forms:
            longest_first = sorted(self._forms, key=lambda form: (-len(form), form))
            self._exact = re.compile("|".join(re.escape(form) for form in longest_first))

    def __repr__(self) -> str:
        return f"Redactor({len(self._forms)} forms of secrets)"

    def text(self, text: str) -> str:
        """The text without secrets, at most a million characters of it."""
        text = self._known(text[:MOST_CHARACTERS])
        text = _URL.sub(lambda found: _url(found[0]), text)
        return _shapes(text)

    def url(self, url: str) -> str:
        """An address without user, password, fragment and token-like values, at most two thousand characters of it."""
        return cut(_shapes(_url(self._known(url[:MOST_CHARACTERS])[: _AHEAD * MOST_URL])), MOST_URL)

    def short(self, text: str, most: int) -> str:
        """The same as `text`, at most so many characters of it: a secret across the cut is found before."""
        return cut(self.text(self._known(text[:MOST_CHARACTERS])[: _AHEAD * most]), most)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Headers by name, with the values of those that carry credentials gone."""
        return {
            name: REDACTED if _SENSITIVE_HEADER.search(name) else self.text(value) for name, value in headers.items()
        }

    def _known(self, text: str) -> str:
        return text if self._exact is None else self._exact.sub(REDACTED, text)


def cut(text: str, most: int) -> str:
    """At most so many characters of what is redacted already: half a secret would not be found."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _shapes(text: str) -> str:
    text = _TYPED.sub(rf"\1({REDACTED})", text)
    text = _FIELD.sub(_pair, text)
    text = _HEADER_LINE.sub(_pair, text)
    text = _PAIR.sub(_pair, text)
    text = _SCHEME.sub(rf"\1\2{REDACTED}", text)
    text = _JWT.sub(REDACTED, text)
    text = _KNOWN.sub(REDACTED, text)
    return _DIGITS.sub(lambda found: REDACTED if _is_card(found[0]) else found[0], text)


def _pair(found: re.Match[str]) -> str:
    value = found[2]
    for mark in ('\\"', '"', "'"):
        if value.startswith(mark):
            return f"{found[1]}{mark}{REDACTED}{mark}"
    return f"{found[1]}{REDACTED}"


def _is_card(text: str) -> bool:
    """Luhn's check: a timestamp or an order number rarely passes, a card number always does."""
    digits = [int(character) for character in text if character.isdigit()]
    doubled = [2 * digit - 9 * (digit > 4) for digit in digits[-2::-2]]
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _url(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    if not colon or not rest.startswith("//"):
        if scheme.lower() in ("data", "javascript", "view-source") and rest:
            return f"{scheme}:{REDACTED}"
        return _URL.sub(lambda inner: _url(inner[0]), url)  # blob:https://…
    address, _, query = rest[2:].partition("#")[0].partition("?")
    place, slash, path = address.partition("/")
    segments = [REDACTED if _SECRET_SEGMENT.fullmatch(part) else part for part in path.split("/")]
    values = [_query_part(part) for part in query.split("&")] if query else []
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{'/'.join(segments)}" + (
        "?" + "&".join(values) if values else ""
    )


def _query_part(part: str) -> str:
    key, equals, value = part.partition("=")
    if not equals:
        return REDACTED if _TOKEN_LIKE.fullmatch(part) else part
    if value and (_SENSITIVE_KEY.search(key) or _TOKEN_LIKE.fullmatch(value) or _carries_address(part)):
        return f"{key}={REDACTED}"
    return part


def _carries_address(part: str) -> bool:
    """A value that is itself an address (?next=https%3A%2F%2F…) may hold a query of its own."""
    return any("://" in value and "?" in value for _, value in parse_qsl(part))
