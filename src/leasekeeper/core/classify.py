"""Classify browser errors: Playwright's message in, a reason of the failure table out.

One ordered table, as data; the first row that fits wins, and an error that fits no row is TASK_ERROR. Only the name of
the error's class and the first line of its message are read: call logs and page texts below are written by the site,
not by the browser. Knows no Playwright: class and message arrive as text, and what they cannot say (is the browser
alive?) arrives as `Facts`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from leasekeeper.core.failures import Reason

MAX_SUMMARY: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the caller knows and an error's text does not say. The defaults describe a healthy browser.

    `browser_alive` False: the browser ended without being asked to. A task that closes its own page leaves it True.
    `page_crashed`: one of its pages did; `proxied`: the profile has a proxy.
    """

    browser_alive: bool = True
    page_crashed: bool = False
    proxied: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One meaning: the error's class ends in `kind`, its text begins with `text`, and the facts agree."""

    reason: str
    text: str = ""
    kind: str = ""
    when: Callable[[Facts], bool] | None = None


_PROXY: Final = (
    "PROXY_|TUNNEL_CONNECTION_FAILED|SOCKS_|NO_SUPPORTED_PROXIES|MANDATORY_PROXY_CONFIGURATION_FAILED"
    "|UNEXPECTED_PROXY_AUTH|PAC_|HTTPS_PROXY_TUNNEL"
)
_TEMPORARY: Final = (
    "CONNECTION_(?:RESET|REFUSED|CLOSED|ABORTED|FAILED|TIMED_OUT)|TIMED_OUT|NAME_NOT_RESOLVED|NAME_RESOLUTION_FAILED|DNS_"
    "|INTERNET_DISCONNECTED|NETWORK_CHANGED|NETWORK_IO_SUSPENDED|EMPTY_RESPONSE|ADDRESS_UNREACHABLE|SOCKET_NOT_CONNECTED"
    "|HTTP2_|QUIC_|CONTENT_LENGTH_MISMATCH|INCOMPLETE_CHUNKED_ENCODING|TEMPORARILY_THROTTLED"
    "|HOST_RESOLVER_QUEUE_TOO_LARGE"
)
_NODE: Final = (
    r"(?:connect|read|write|getaddrinfo|queryA) (?:ECONNREFUSED|ECONNRESET|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH|EPIPE"
    r"|ENOTFOUND|EAI_AGAIN)|socket hang up"
)

# Launch errors are matched against the whole message: the browser's own output is below the first line.
_LAUNCH: Final = (
    Row(
        Reason.PROFILE_IN_USE_ELSEWHERE,
        r"(?s).*(?:Failed to create a ProcessSingleton|Opening in existing browser session"
        r"|The profile appears to be in use by another)",
    ),
    Row(Reason.BROWSER_LAUNCH_FAILED),
)

# Errors of a page, a context or a request. Certificates, bad addresses, downloads, blocked requests, ambiguous
# selectors and errors of the page's own scripts have no row: trying again would not help.
TABLE: Final = (
    Row(Reason.BROWSER_CRASHED, when=lambda facts: not facts.browser_alive),
    Row(
        Reason.BROWSER_CRASHED,
        "net::ERR_ABORTED|Target page, context or browser has",
        when=lambda facts: facts.page_crashed,
    ),
    Row(Reason.BROWSER_CRASHED, "(?:Page|Target) crashed|Navigation failed because page crashed"),
    Row(Reason.BROWSER_CRASHED, "Connection closed while (?:reading|writing)"),
    Row(Reason.PROXY_UNREACHABLE, f"net::ERR_(?:{_PROXY})"),
    Row(Reason.PROXY_UNREACHABLE, "net::ERR_INVALID_AUTH_CREDENTIALS", when=lambda facts: facts.proxied),
    Row(Reason.TEMPORARY_NAVIGATION_ERROR, f"net::ERR_(?:{_TEMPORARY})"),
    Row(Reason.TEMPORARY_NAVIGATION_ERROR, _NODE),
    Row(Reason.TIMEOUT, kind=".TimeoutError"),
)

OTHERWISE: Final = Reason.TASK_ERROR

_CALL = re.compile(r"(?:(\w+)\.\w+: )?")
_LAUNCHER: Final = "BrowserType"
# Playwright's expect() raises a plain AssertionError, also when the browser died meanwhile.
_EXPECTATION: Final = "\nCall log:\n  - Expect "


def kind_of(error: BaseException) -> str:
    """The full name of an error's class, as `classify` wants it."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


def classify(kind: str, message: str, facts: Facts | None = None) -> str:
    """The reason for an error of this class with this text. An error that is not Playwright's is the task's own."""
    if not kind.startswith("playwright.") and _EXPECTATION not in message:
        return OTHERWISE
    call = _CALL.match(message)
    if call is not None and call[1] == _LAUNCHER:
        return _first(_LAUNCH, kind, message, facts or Facts())
    return _first(TABLE, kind, message[call.end() if call else 0 :].split("\n", 1)[0], facts or Facts())


def says_closed(kind: str, message: str) -> bool:
    """Whether an error says that a page, a browser or the Playwright process is gone, not which of them."""
    said = kind.endswith(".TargetClosedError") or "Connection closed" in message or "has been closed" in message
    return said and kind.startswith("playwright.")


def _first(rows: tuple[Row, ...], kind: str, text: str, facts: Facts) -> str:
    for row in rows:
        fits = kind.endswith(row.kind) and re.match(row.text, text) is not None
        if fits and (row.when is None or row.when(facts)):
            return row.reason
    return OTHERWISE


def summary(message: str, redact: Callable[[str], str] = str) -> str:
    """An error's first line, short enough for a record. The call log below it may hold what was typed into a form.

    `redact` takes secrets out of the line before it is cut: half a secret would not be found.
    """
    line = redact(message.strip().split("\n", 1)[0].strip())
    return line if len(line) <= MAX_SUMMARY else line[: MAX_SUMMARY - 1] + "…"
