"""Removes secrets from text, URLs and headers before anything is stored.

Known secrets (a proxy's password) are found anywhere, also URL-encoded. Others are found by pattern: key=value pairs,
bearer tokens, JWTs, card numbers. Redacting twice changes nothing more. Patterns miss some secrets: what must not leak
has to be added by name, or not be stored.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl, quote, quote_plus

from leasekeeper.core.failures import Reason
from leasekeeper.errors import error_tree

REDACTED: Final = "[redacted]"
MIN_SECRET: Final = 4
MAX_CHARACTERS: Final = 1_000_000
# The keeper stores the same number of characters of a URL.
MAX_URL: Final = 2_000
# The message of a task's failure: records, events and reviews repeat it.
MAX_MESSAGE: Final = 2_000
# Patterns are applied to this many times the limit, before the text is cut: redaction makes it shorter.
_MARGIN: Final = 10

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
# A quoted value (also without its closing quote, also escaped inside other JSON) is redacted as a whole.
_QUOTED: Final = r"\\\"[^\"\\\n]*(?:\\\")?|\"(?:[^\"\\\n]|\\.)*\"?|'[^'\n]*'?"
_HEADER_LINE = re.compile(
    rf"\b((?:proxy-)?authorization\b\\?[\"']?\s{{0,3}}[:=]>?\s{{0,3}}|(?:set-)?cookie\b\\?[\"']?\s{{0,3}}[:=]>?\s{{0,3}})"
    rf"({_QUOTED}|[^\r\n]+)",
    re.IGNORECASE,
)
# Codes of ours that hold such a word name no secret: what follows them is our own sentence.
_OWN: Final = (*Reason, *(kind.code for kind, _ in error_tree()))
_CODES: Final = "|".join(sorted(code for code in _OWN if re.search(_WORDS, code, re.IGNORECASE)))
_PAIR = re.compile(
    rf"\b(?-i:{_CODES}): "
    rf"|((?:{_WORDS})[\w-]{{0,30}}\\?[\"']?\s{{0,3}}[:=]>?\s{{0,3}})({_QUOTED}|\[redacted\]|[^\s,;&\"'<>)}}\]]+)",
    re.IGNORECASE,
)
# What a task typed into a form: it is in Playwright's call logs and in the fields themselves.
_TYPED = re.compile(r"\b(fill|type|press_sequentially|insert_text)\((?=[^\n]{0,200}[\"'])[^\n]*")
_FIELD = re.compile(r"\b(value=)(\"[^\"\n]*\"?|'[^'\n]*'?)")
_SCHEME = re.compile(r"\b(bearer|basic)(\s{1,3})[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?")
_KNOWN = re.compile(
    r"(?<![\w-])(?:sk|pk|rk)[-_](?:live|test|proj|ant)?[-_]?[A-Za-z0-9_-]{16,}"
    r"|(?<!\w)(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza)[A-Za-z0-9_-]{12,}"
    r"|(?<!\w)whsec_[A-Za-z0-9+/=_-]{12,}"
    r"|(?<!\w)lk_[a-z0-9]{12}_[0-9A-Za-z]{20,}"
    r"|(?<!\w)lkey_[A-Za-z0-9+/=_-]{20,}"
)
_DIGITS = re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])")


class Redactor:
    """Redacts text, URLs and headers. `secrets` are found anywhere in them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms: set[str] = set()
        self._exact: re.Pattern[str] | None = None
        self.add(*secrets)

    def add(self, *secrets: str) -> None:
        """Add known secrets. Those under four characters look like ordinary text and are ignored."""
        for secret in secrets:
            if len(secret) >= MIN_SECRET:
                self._forms |= {secret, quote(secret, safe=""), quote(secret), quote_plus(secret)}
                self._forms.add(json.dumps(secret)[1:-1])
        if self._forms:
            longest_first = sorted(self._forms, key=lambda form: (-len(form), form))
            self._exact = re.compile("|".join(re.escape(form) for form in longest_first))

    def __repr__(self) -> str:
        return f"Redactor({len(self._forms)} forms of secrets)"

    def text(self, text: str) -> str:
        """The text without secrets. The maximum length is a million characters."""
        text = self._without_known(text[:MAX_CHARACTERS])
        text = _URL.sub(lambda found: _url(found[0]), text)
        return _by_pattern(text)

    def url(self, url: str) -> str:
        """A URL without user, password, fragment and token-like values. The maximum length is 2,000 characters."""
        return cut(_by_pattern(_url(self._without_known(url[:MAX_CHARACTERS])[: _MARGIN * MAX_URL])), MAX_URL)

    def short(self, text: str, limit: int) -> str:
        """`text`, cut to `limit` characters after the redaction, so that no part of a secret is left at the cut."""
        return cut(self.text(self._without_known(text[:MAX_CHARACTERS])[: _MARGIN * limit]), limit)

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Headers by name; values that carry credentials are redacted."""
        return {
            name: REDACTED if _SENSITIVE_HEADER.search(name) else self.text(value) for name, value in headers.items()
        }

    def _without_known(self, text: str) -> str:
        return text if self._exact is None else self._exact.sub(REDACTED, text)


def cut(text: str, limit: int) -> str:
    """Cut redacted text to `limit` characters. Redact first: half a secret would not be found."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _by_pattern(text: str) -> str:
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
    if value is None:
        return found[0]
    for mark in ('\\"', '"', "'"):
        if value.startswith(mark):
            return f"{found[1]}{mark}{REDACTED}{mark}"
    return f"{found[1]}{REDACTED}"


def _is_card(text: str) -> bool:
    """The Luhn checksum: card numbers always pass, timestamps and order numbers rarely do."""
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
    if value and (_SENSITIVE_KEY.search(key) or _TOKEN_LIKE.fullmatch(value) or _contains_url(part)):
        return f"{key}={REDACTED}"
    return part


def _contains_url(part: str) -> bool:
    """Whether a value is itself a URL (?next=https%3A%2F%2F…) with a query of its own."""
    return any("://" in value and "?" in value for _, value in parse_qsl(part))
