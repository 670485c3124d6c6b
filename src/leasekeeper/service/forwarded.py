"""Who calls, as a proxy in front of this server says. Pure.

Only a proxy is believed: one on this machine, or any if whoever started the server said that one is in front of it. The
last address of `X-Forwarded-For` is the one that the nearest proxy wrote; those before it may be anybody's invention.
"""

import ipaddress

from starlette.datastructures import Headers
from starlette.types import Scope

from leasekeeper.local_tokens import is_loopback


def as_called(scope: Scope, *, behind_proxy: bool) -> Scope:
    """The scope with the caller's own address and scheme."""
    peer = scope["client"][0] if scope.get("client") else ""
    headers = Headers(scope=scope)
    named = headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    scheme = headers.get("x-forwarded-proto", "")
    if not (behind_proxy or is_loopback(peer)) or not (named or scheme):
        return scope
    seen = dict(scope)
    if _is_address(named):
        seen["client"] = (named, 0)
    if scheme in ("http", "https"):
        secure, plain = ("wss", "ws") if scope["type"] == "websocket" else ("https", "http")
        seen["scheme"] = secure if scheme == "https" else plain
    return seen


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
