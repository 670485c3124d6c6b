"""Checks every request before it is routed: its host, its origin if a browser sent it, the size of its headers, and how
often its sender failed to authenticate. Pure ASGI, so that streams pass through unchanged.
"""

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leasekeeper.errors import CrossSiteRequest, HostNotAllowed, LeasekeeperError, RequestRefused, TooManyRequests
from leasekeeper.service.forwarded import as_called
from leasekeeper.service.problems import problem_response

_LOG = logging.getLogger(__name__)

MAX_HEADERS: Final = 100
MAX_HEADER_BYTES: Final = 32 * 1024
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_FAILURES: Final = 20
FAILURE_SECONDS: Final = 60.0
MAX_SENDERS: Final = 10_000
CLOSE_SECONDS: Final = 2.0
SIGN_IN: Final = "/ui/sign-in"

# Our pages load nothing from other hosts, and cannot be framed.
SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def signs_in(scope: Scope) -> bool:
    """Whether this is the sign-in form of the pages."""
    path: str = scope["path"]
    return scope["method"] == "POST" and path.endswith(SIGN_IN)


def is_own(headers: Headers) -> bool:
    """Whether a page of this server, or no browser at all, sent this."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host", "")


def _tries_token(scope: Scope) -> bool:
    """Whether the call has a token. Calls without one are not counted: they guess nothing, and a page of another site
    could make a browser on this machine send so many that its workers are locked out.
    """
    headers = Headers(scope=scope)
    brings = "authorization" in headers or b"token=" in scope["query_string"]
    return is_own(headers) and (brings or (scope["type"] == "http" and signs_in(scope)))


async def _closed(receive: Receive) -> None:
    """Wait until the connection of a refused upgrade is closed: until then uvicorn logs it as one not answered."""
    seen = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            while seen < 2:  # the first says that the answer was sent
                seen += (await receive())["type"] == "websocket.disconnect"


class FailureCount:
    """How often each address failed to authenticate recently. Forgets the oldest when there are too many."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: dict[str, tuple[float, int]] = {}

    def wait_seconds(self, sender: str) -> int | None:
        """How long the sender has to wait; None: it need not."""
        since, failed = self._failures.get(sender, (0.0, 0))
        left = since + FAILURE_SECONDS - self._now()
        if left <= 0:
            self._failures.pop(sender, None)
            return None
        return int(left) + 1 if failed >= MAX_FAILURES else None

    def failed(self, sender: str) -> None:
        since, failed = self._failures.get(sender, (self._now(), 0))
        if failed + 1 == MAX_FAILURES:
            _LOG.warning(
                "%d calls from %s came with a wrong token: tokens that are not known are refused from there for %d s",
                MAX_FAILURES, sender, FAILURE_SECONDS, extra={"host": sender},
            )  # fmt: skip
        if len(self._failures) >= MAX_SENDERS:
            self._failures.pop(next(iter(self._failures)))
        self._failures[sender] = (since, failed + 1)


class Guards:
    """The application behind its guards.

    `knows`: whether a token was valid recently. Callers may share an address, and one with a wrong token must not lock
    out the others.
    """

    def __init__(
        self, app: ASGIApp, hosts: Iterable[str] = (), *, knows: Callable[[str], bool], behind_proxy: bool = False
    ) -> None:
        self._app = app
        self._knows_token = knows
        self._behind_proxy = behind_proxy
        self._hosts = {"localhost", socket.gethostname().lower(), *(host.lower() for host in hosts)}
        self._failures = FailureCount()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope = as_called(scope, behind_proxy=self._behind_proxy)
        sender = scope["client"][0] if scope.get("client") else ""

        denied = False

        async def guarded_send(message: Message) -> None:
            nonlocal denied
            denied = denied or message["type"] == "websocket.http.response.start"
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                if message["status"] == 401 and _tries_token(scope):
                    self._failures.failed(sender)
                given = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((name, value) for name, value in SECURITY_HEADERS if name not in given),
                ]
            await send(message)

        refused = self._refusal(scope, sender)
        if refused is not None:
            await problem_response(refused)(scope, receive, guarded_send)
        else:
            await self._app(scope, receive, guarded_send)
        if denied:
            await _closed(receive)

    def _refusal(self, scope: Scope, sender: str) -> LeasekeeperError | None:
        raw = scope["headers"]
        if len(raw) > MAX_HEADERS or sum(len(name) + len(value) for name, value in raw) > MAX_HEADER_BYTES:
            return RequestRefused(f"the headers are more than {MAX_HEADERS}, or than {MAX_HEADER_BYTES:,} bytes")
        headers = Headers(scope=scope)
        if not self._knows(headers.get("host", "")):
            return HostNotAllowed("this server does not go by that name: allow it where the server is started")
        # Browsers let a page of another site open a WebSocket, as they let it send a form.
        if scope.get("method") not in SAFE and not is_own(headers):
            return CrossSiteRequest("a page of another site sent this request; nothing was done")
        if headers.get("authorization") is not None or scope["type"] == "websocket" or signs_in(scope):
            wait = self._failures.wait_seconds(sender)
            if wait is not None and not self._knows_token(headers.get("authorization", "").partition(" ")[2].strip()):
                return TooManyRequests(
                    f"too many calls with a wrong token came from here: wait {wait} s", retry_after_seconds=wait
                )
        return None

    def _knows(self, host: str) -> bool:
        """Whether this is a name of the server. IP addresses are accepted: unlike names they cannot be rebound to
        another machine.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
            ipaddress.ip_address(name)
        except ValueError:
            return host.partition(":")[0].lower() in self._hosts
        return True
