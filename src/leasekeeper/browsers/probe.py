"""An optional live probe of a proxy: fetch a URL through it and compare the exit that the answer names.

Three results: ok, changed (the proxy works, but has another exit), failed (the exit is unknown). Standard library only,
and blocking: call it in a thread. The URL should answer with JSON (`{"ip": …, "country": …}`) or with plain text. The
timeout is for the whole probe, however slowly a proxy answers; only the proxy's DNS lookup has the system's timeout.
"""

import http.client
import io
import json
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from leasekeeper.core.browsers import Credentials

PROBE_SECONDS: Final = 5.0
MAX_BYTES: Final = 64 * 1024
# The field names that "what is my IP" services use for the exit.
_FIELDS: Final = ("ip", "query", "origin", "country", "countryCode", "country_code", "region", "regionName", "city")
# The fields with its location. Plain text may be a region or an address.
_REGIONS: Final = ("country", "countryCode", "country_code", "region", "regionName", "text")


class ProbeResult(StrEnum):
    OK = "ok"
    CHANGED = "changed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The result of one probe. `seen`: all that the answer says of the exit. `region`: its location. `detail`: for a
    person."""

    result: ProbeResult
    seen: str = ""
    region: str = ""
    detail: str = ""


def probe(
    server: str,
    url: str,
    *,
    credentials: Credentials | None = None,
    expected: str | None = None,
    seconds: float = PROBE_SECONDS,
) -> Probe:
    """Fetch `url` through the proxy `server`. `expected` is a region or an address that the answer must name.

    `seconds` is the timeout of the whole probe: connect, login, request and answer.
    """
    try:
        status, body = _fetch(urlsplit(server), urlsplit(url), credentials, seconds)
    except _NotSupported as error:
        return Probe(result=ProbeResult.FAILED, detail=str(error))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Probe(result=ProbeResult.FAILED, detail=f"no response through the proxy: {_error_text(error)}")
    if status != 200:
        return Probe(result=ProbeResult.FAILED, detail=f"the probed address answered with status {status}")
    return judge(body, expected)


def judge(body: bytes, expected: str | None) -> Probe:
    """Compare an answer with the expected region or address; None: any exit is ok."""
    seen = _seen(body)
    named = next((value for value in seen.values() if expected and value.casefold() == expected.casefold()), None)
    region = named or next((seen[name] for name in _REGIONS if name in seen), "")
    if expected is None or named is not None:
        return Probe(result=ProbeResult.OK, seen=_seen_text(seen), region=region)
    shown = _seen_text(seen) or "nothing that says where it exits"
    detail = f"expected {expected}, seen {shown}"
    return Probe(result=ProbeResult.CHANGED, seen=_seen_text(seen), region=region, detail=detail)


def connect_fault(server: str, *, seconds: float = PROBE_SECONDS) -> str | None:
    """Why a connection to the proxy fails; None if it can be made. Does not check what the proxy can reach."""
    place = urlsplit(server)
    try:
        _Link((place.hostname or "", place.port or 0), time.monotonic() + seconds).close()
    except (OSError, ValueError) as error:
        return f"no connection to the proxy: {_error_text(error)}"
    return None


class _NotSupported(Exception):
    pass


def _error_text(error: Exception) -> str:
    """A short text for an error, without any text from a server."""
    if isinstance(error, TimeoutError):
        return "timeout"
    return str(getattr(error, "strerror", None) or type(error).__name__)


class _Link:
    """A connection with one deadline: each call waits only for the time that is left."""

    def __init__(self, place: tuple[str, int], until: float) -> None:
        self._until = until
        self._socket = self._connect(place)

    def _connect(self, place: tuple[str, int]) -> socket.socket:
        problem: OSError = ConnectionError(0, "the proxy has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(*place, type=socket.SOCK_STREAM):
            link = None
            try:
                link = socket.socket(family, kind, protocol)
                link.settimeout(self._left())
                link.connect(address)
            except OSError as error:
                if link is not None:
                    link.close()
                problem = error
            else:
                return link
        raise problem

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def secure(self, name: str) -> None:
        """Start TLS; the server's certificate must be for this name."""
        self._socket.settimeout(self._left())
        self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=name)

    def send(self, data: bytes) -> None:
        self._socket.settimeout(self._left())
        self._socket.sendall(data)

    def receive_into(self, buffer: "memoryview | bytearray") -> int:
        self._socket.settimeout(self._left())
        return self._socket.recv_into(buffer)

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = bytearray(count - len(data))
            if not (size := self.receive_into(piece)):
                raise ConnectionError(0, "the proxy closed the connection")
            data += piece[:size]
        return data

    def makefile(self, _mode: str) -> io.BufferedReader:
        """`HTTPResponse` calls this on a socket to read from it."""
        return io.BufferedReader(_Stream(self))

    def close(self) -> None:
        self._socket.close()


class _Stream(io.RawIOBase):
    def __init__(self, link: _Link) -> None:
        self._link = link

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._link.receive_into(buffer)


def _fetch(proxy: SplitResult, url: SplitResult, login: Credentials | None, seconds: float) -> tuple[int, bytes]:
    until = time.monotonic() + seconds
    name, secure = url.hostname or "", url.scheme == "https"
    target = name, url.port or (443 if secure else 80)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    headers = {"Host": url.netloc.rpartition("@")[2], "Connection": "close", "User-Agent": "leasekeeper-probe"}
    if proxy.scheme not in ("http", "https", "socks5") or (secure and proxy.scheme == "https"):
        raise _NotSupported(f"a probe of {url.scheme} through a proxy of kind {proxy.scheme} is not supported")
    link = _Link((proxy.hostname or "", proxy.port or 0), until)
    try:
        if proxy.scheme == "socks5":
            _socks5(link, target, login)
        elif secure:
            _tunnel(link, target, login)
        else:
            path, headers = f"http://{headers['Host']}{path}", {**headers, **_login(login)}
        if secure or proxy.scheme == "https":
            link.secure(name if secure else proxy.hostname or "")
        answer = _ask(link, "GET", path, headers)
        return answer.status, answer.read(MAX_BYTES)
    finally:
        link.close()


def _ask(link: _Link, method: str, path: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    lines = (f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", "")
    link.send("\r\n".join(lines).encode("ascii"))
    answer = http.client.HTTPResponse(link, method=method)  # type: ignore[arg-type] # it calls only makefile
    answer.begin()
    return answer


def _tunnel(link: _Link, target: tuple[str, int], login: Credentials | None) -> None:
    name = f"[{target[0]}]" if ":" in target[0] else target[0].encode("idna").decode()
    place = f"{name}:{target[1]}"
    status = _ask(link, "CONNECT", place, {"Host": place, **_login(login)}).status
    if status != 200:
        raise ConnectionError(0, f"the proxy refused the tunnel (status {status})")


def _login(credentials: Credentials | None) -> dict[str, str]:
    if credentials is None:
        return {}
    return {"Proxy-Authorization": f"Basic {credentials.basic}"}


def _socks5(link: _Link, target: tuple[str, int], login: Credentials | None) -> None:
    """Connect through SOCKS5 (RFC 1928 and 1929): log in if asked to; the proxy resolves the name."""
    link.send(b"\x05\x02\x00\x02" if login else b"\x05\x01\x00")
    method = link.exactly(2)[1]
    if method == 2 and login is not None:
        user, password = login.username.encode(), login.password.encode()
        link.send(bytes([1, len(user)]) + user + bytes([len(password)]) + password)
        if link.exactly(2)[1] != 0:
            raise ConnectionError(0, "the proxy refused the login")
    elif method != 0:
        raise ConnectionError(0, "the proxy requires another login method")
    name = target[0].encode("idna")
    link.send(b"\x05\x01\x00\x03" + bytes([len(name)]) + name + struct.pack("!H", target[1]))
    _, status, _, kind = link.exactly(4)
    if status != 0:
        raise ConnectionError(0, f"the proxy could not connect (SOCKS status {status})")
    link.exactly({1: 4, 4: 16}.get(kind) or link.exactly(1)[0])
    link.exactly(2)


def _seen(body: bytes) -> dict[str, str]:
    text = body.decode(errors="replace").strip()
    try:
        answer: Any = json.loads(text)
    except ValueError:
        answer = text
    if isinstance(answer, dict):
        return {name: str(answer[name])[:100] for name in _FIELDS if isinstance(answer.get(name), str | int)}
    return {"text": str(answer)[:100]}


def _seen_text(seen: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" if name != "text" else value for name, value in seen.items())
