"""The caller's address and scheme, from the headers of a proxy in front of this server. Pure.

The headers count only if a proxy sent them: from this machine, or from any address if the server was started with
--behind-tls-proxy. The last address of `X-Forwarded-For` was written by the nearest proxy; those before it can be
forged.
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
