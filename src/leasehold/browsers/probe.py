"""An optional live look through a proxy: fetch one address and compare what it says with what is expected.

Three answers: ok, changed (it works, but the exit is another one), failed (nobody knows). Standard library only, and
blocking: call it from a thread. The address should answer with JSON (`{"ip": …, "country": …}`) or with plain text.
"""

import base64
import http.client
import json
import socket
import ssl
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from leasehold.browsers.secrets import Credentials

PROBE_SECONDS: Final = 5.0
MOST_BYTES: Final = 64 * 1024
# Names under which "what is my address" services tell the exit.
_FIELDS: Final = ("ip", "query", "origin", "country", "countryCode", "country_code", "region", "regionName", "city")


class ProbeResult(StrEnum):
    OK = "ok"
    CHANGED = "changed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What came of one look. `seen` is what the address told of the exit; `detail` is for a person."""

    result: ProbeResult
    seen: str = ""
    detail: str = ""


def probe(
    server: str,
    url: str,
    *,
    credentials: Credentials | None = None,
    expected: str | None = None,
    seconds: float = PROBE_SECONDS,
) -> Probe:
    """Fetch `url` through `server`. `expected` is a region or an address that the answer must name."""
    try:
        status, body = _fetch(urlsplit(server), urlsplit(url), credentials, seconds)
    except _NotSupported as error:
        return Probe(result=ProbeResult.FAILED, detail=str(error))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Probe(result=ProbeResult.FAILED, detail=f"the proxy gave no answer: {_words(error)}")
    if status != 200:
        return Probe(result=ProbeResult.FAILED, detail=f"the probed address answered with status {status}")
    seen = _seen(body)
    if expected is None or any(value.casefold() == expected.casefold() for value in seen.values()):
        return Probe(result=ProbeResult.OK, seen=_told(seen))
    told = _told(seen) or "nothing that says where it exits"
    return Probe(result=ProbeResult.CHANGED, seen=_told(seen), detail=f"expected {expected}, seen {told}")


class _NotSupported(Exception):
    pass


def _words(error: Exception) -> str:
    """Short, and without the text that a server could put its own words (or ours) into."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    return str(getattr(error, "strerror", None) or type(error).__name__)


def _fetch(proxy: SplitResult, url: SplitResult, login: Credentials | None, seconds: float) -> tuple[int, bytes]:
    host, port = proxy.hostname or "", proxy.port or 0
    target, secure = url.hostname or "", url.scheme == "https"
    target_port = url.port or (443 if secure else 80)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    headers = {"Host": url.netloc.rpartition("@")[2], "Connection": "close", "User-Agent": "leasehold-probe"}
    link: http.client.HTTPConnection
    match proxy.scheme:
        case "http" if secure:
            link = http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
            link.set_tunnel(target, target_port, _login(login))
        case "http":
            link = http.client.HTTPConnection(host, port, timeout=seconds)
            path, headers = f"http://{headers['Host']}{path}", {**headers, **_login(login)}
        case "https" if not secure:
            link = http.client.HTTPSConnection(host, port, timeout=seconds, context=ssl.create_default_context())
            path, headers = f"http://{headers['Host']}{path}", {**headers, **_login(login)}
        case "socks5":
            link = http.client.HTTPConnection(target, target_port, timeout=seconds)
            link.sock = _socks5((host, port), (target, target_port), login, seconds)
            if secure:
                link.sock = ssl.create_default_context().wrap_socket(link.sock, server_hostname=target)
        case scheme:
            raise _NotSupported(f"a probe of {url.scheme} through a proxy of kind {scheme} is not supported")
    try:
        link.request("GET", path, headers=headers)
        answer = link.getresponse()
        return answer.status, answer.read(MOST_BYTES)
    finally:
        link.close()


def _login(credentials: Credentials | None) -> dict[str, str]:
    if credentials is None:
        return {}
    pair = base64.b64encode(f"{credentials.username}:{credentials.password}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {pair}"}


def _socks5(
    proxy: tuple[str, int], target: tuple[str, int], login: Credentials | None, seconds: float
) -> socket.socket:
    """RFC 1928 and 1929: greet, log in if asked to, and let the proxy resolve the name."""
    link = socket.create_connection(proxy, timeout=seconds)
    try:
        link.sendall(b"\x05\x02\x00\x02" if login else b"\x05\x01\x00")
        method = _exactly(link, 2)[1]
        if method == 2 and login is not None:
            user, password = login.username.encode(), login.password.encode()
            link.sendall(bytes([1, len(user)]) + user + bytes([len(password)]) + password)
            if _exactly(link, 2)[1] != 0:
                raise ConnectionError(0, "the proxy refused the login")
        elif method != 0:
            raise ConnectionError(0, "the proxy wants another login")
        name = target[0].encode("idna")
        link.sendall(b"\x05\x01\x00\x03" + bytes([len(name)]) + name + struct.pack("!H", target[1]))
        _, status, _, kind = _exactly(link, 4)
        if status != 0:
            raise ConnectionError(0, f"the proxy could not connect (SOCKS status {status})")
        _exactly(link, {1: 4, 4: 16}.get(kind) or _exactly(link, 1)[0])
        _exactly(link, 2)
    except BaseException:
        link.close()
        raise
    return link


def _exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = link.recv(count - len(data))
        if not chunk:
            raise ConnectionError(0, "the proxy hung up")
        data += chunk
    return data


def _seen(body: bytes) -> dict[str, str]:
    text = body.decode(errors="replace").strip()
    try:
        answer: Any = json.loads(text)
    except ValueError:
        answer = text
    if isinstance(answer, dict):
        return {name: str(answer[name])[:100] for name in _FIELDS if isinstance(answer.get(name), str | int)}
    return {"text": str(answer)[:100]}


def _told(seen: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" if name != "text" else value for name, value in seen.items())
