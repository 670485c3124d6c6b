"""One POST to a receiver, in its time, to an address that may be called.

The name is looked up once, and the connection goes to an address that was checked: a name cannot lead into the network
behind this machine. Redirects are not followed, and of the answer only its head counts. What a receiver says never
gets into our words: they are kept and shown.
"""

import asyncio
import ipaddress
import os
import re
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from leasekeeper.aside import aside
from leasekeeper.errors import InputError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_HEAD: Final = 64 * 1024
MOST_INTERIM: Final = 8
MOST_ADDRESSES: Final = 4
LONGEST_ASKED: Final = 7 * 86_400
MOST_HEARD: Final = 64 * 1024
HEAR_SECONDS: Final = 1.0

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9]\d\d)(?: |\r|$)")
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after:[ \t]*([^\r\n]{1,64})", re.IGNORECASE)
_UNFIT: Final = re.compile(r"[\x00-\x20\x7f-\U0010ffff]")
# Names that are being looked up, by who waits for them.
_UNDER_WAY: Final[dict[tuple[asyncio.AbstractEventLoop, str, int], "asyncio.Future[list[Any]]"]] = {}
# Addresses that carry another one, which is where the connection ends: NAT64.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a POST. `words` are ours, for a person; no `status`: nobody answered."""

    words: str
    status: int | None = None
    retry_after: timedelta | None = None


def read_networks(text: str) -> tuple[Network, ...]:
    """The networks in a setting: `10.0.0.0/8 127.0.0.1`, separated by spaces."""
    networks: list[Network] = []
    for word in text.split():
        try:
            networks.append(ipaddress.ip_network(word))
        except ValueError:
            shown = "a secret" if word.startswith("whsec_") else repr(word)
            raise InputError(
                f"LEASEKEEPER_WEBHOOK_NETWORKS: {shown} is not a network; write 10.0.0.0/8 or 127.0.0.1, several "
                "separated by spaces"
            ) from None
    return tuple(networks)


def may_be_called(address: Address, networks: Sequence[Network]) -> bool:
    """Public addresses always may, others only inside these networks."""
    inner = _inner(address)
    if any(each.version == network.version and each in network for each in (address, inner) for network in networks):
        return True
    site_local = isinstance(inner, ipaddress.IPv6Address) and inner.is_site_local
    return inner.is_global and not (inner.is_multicast or inner.is_reserved or site_local)


def _inner(address: Address) -> Address:
    """The address where a connection to this one ends."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


@dataclass(slots=True)
class _Step:
    """What a POST waits for, and its answer once that is there."""

    words: str = "its name was not looked up"
    answer: Answer | None = None


async def post(
    url: str, headers: Mapping[str, str], body: bytes, *, seconds: float, networks: Sequence[Network] = ()
) -> Answer:
    """Send it and wait for the head of the answer; `seconds` are for all of it."""
    step = _Step()
    try:
        async with asyncio.timeout(seconds):
            return await _post(urlsplit(url), headers, body, networks, seconds, step)
    except TimeoutError:
        return step.answer or Answer(words=f"{step.words} within {seconds:g} s")
    except _Refused as refused:
        return Answer(words=str(refused))
    except ssl.SSLCertVerificationError as error:
        return Answer(words=f"its certificate is not valid: {error.verify_message}")
    except ssl.SSLError as error:
        return Answer(words=f"no secure connection ({error.reason or 'TLS failed'}): does it speak https?")
    except socket.gaierror as error:
        return Answer(words=f"its name cannot be looked up: {error.strerror}")
    except UnicodeError:  # a name with an empty part, or one that is too long
        return Answer(words="its name cannot be looked up: it is not one")
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        return Answer(words=_words(error))


class _Refused(Exception):
    """It must not be sent, or what came back is no answer. The message is ours."""


def _words(error: Exception) -> str:
    if isinstance(error, asyncio.LimitOverrunError):
        return "its answer is too long"
    if isinstance(error, EOFError):
        return "it hung up without an answer"
    number = getattr(error, "errno", None)
    return f"no connection: {os.strerror(number) if number else type(error).__name__}"


async def _post(
    parts: SplitResult,
    headers: Mapping[str, str],
    body: bytes,
    networks: Sequence[Network],
    seconds: float,
    step: _Step,
) -> Answer:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise _Refused("its address is not an http or https one")
    if _UNFIT.search(target) or _UNFIT.search(parts.netloc):
        raise _Refused("its address has characters that cannot be sent")
    lines = [
        f"POST {target} HTTP/1.1",
        f"host: {parts.netloc}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "user-agent: leasekeeper",
        "accept: */*",
        "connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = await _allowed(parts.hostname, port, networks)
    step.words = "no connection"
    reader, writer = await _connect(parts, port, addresses, seconds)
    try:
        step.words = "no answer"
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        await writer.drain()
        step.answer = await _answer(reader)
        await _hear_out(reader)
        return step.answer
    finally:
        writer.transport.abort()


async def _hear_out(reader: asyncio.StreamReader) -> None:
    """Let a receiver say the rest of its answer: some give up what they are doing when nobody listens. Not for long."""
    left = MOST_HEARD
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(HEAR_SECONDS):
            while left > 0 and (piece := await reader.read(left)):
                left -= len(piece)


async def _allowed(host: str, port: int, networks: Sequence[Network]) -> list[Address]:
    """The addresses of a host that may be called."""
    try:
        addresses: list[Address] = [ipaddress.ip_address(host)]
    except ValueError:
        found = await _looked_up(host, port)
        addresses = list(dict.fromkeys(ipaddress.ip_address(info[4][0]) for info in found))
    allowed = [address for address in addresses if may_be_called(address, networks)]
    if not allowed:
        raise _Refused(
            f"{', '.join(map(str, addresses[:MOST_ADDRESSES])) or host} is not a public address: if it is meant, "
            "allow its network with LEASEKEEPER_WEBHOOK_NETWORKS"
        )
    return allowed[:MOST_ADDRESSES]


async def _connect(
    parts: SplitResult, port: int, addresses: Sequence[Address], seconds: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first address that takes one. None of them may use up the time of the others."""
    context = await aside(_trust) if parts.scheme == "https" else None
    share = seconds / (len(addresses) + 1)
    for number, address in enumerate(addresses, 1):
        last = number == len(addresses)
        try:
            async with asyncio.timeout(None if last else share):
                return await asyncio.open_connection(
                    str(address),
                    port,
                    limit=MOST_HEAD,
                    ssl=context,
                    server_hostname=parts.hostname if context else None,
                )
        except ssl.SSLError:
            raise
        except (OSError, TimeoutError):
            if last:
                raise
    raise _Refused("it has no address")


async def _looked_up(host: str, port: int) -> "list[Any]":
    """The addresses of a name. Each name has a thread of its own, which ends with the process if need be: a name server
    that does not answer must hold up nothing else."""
    loop = asyncio.get_running_loop()
    known = _UNDER_WAY.get((loop, host, port))
    if known is None:
        known = _UNDER_WAY[loop, host, port] = loop.create_future()
        known.add_done_callback(lambda _: _UNDER_WAY.pop((loop, host, port), None))
        name = f"leasekeeper-webhook-name-{host}"
        try:
            threading.Thread(target=_look_up, args=(loop, known, host, port), name=name, daemon=True).start()
        except BaseException:
            del _UNDER_WAY[loop, host, port]  # nobody would ever answer it
            raise
    return await asyncio.shield(known)


def _look_up(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[list[Any]]", host: str, port: int) -> None:
    try:
        found, error = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), None
    except Exception as problem:  # noqa: BLE001 - it belongs to those who asked, whatever it is
        found, error = [], problem
    with suppress(RuntimeError):  # the loop is gone, and whoever asked with it
        loop.call_soon_threadsafe(_resolve, future, found, error)


def _resolve(future: "asyncio.Future[list[Any]]", found: "list[Any]", error: Exception | None) -> None:
    if error is None:
        future.set_result(found)
    else:
        future.set_exception(error)
        future.exception()  # those who asked may have stopped waiting: nobody has to hear of it


@cache
def _trust() -> ssl.SSLContext:
    """Whose certificates count: the system's, or SSL_CERT_FILE's."""
    return ssl.create_default_context()


async def _answer(reader: asyncio.StreamReader) -> Answer:
    """The first head that is not an interim one."""
    for _ in range(MOST_INTERIM):
        head = await reader.readuntil(b"\r\n\r\n")
        status = _STATUS.match(head)
        if status is None:
            raise _Refused("what answers there does not speak HTTP")
        number = int(status[1])
        if number >= 200:
            asked = _RETRY_AFTER.search(head)
            return Answer(status=number, words=f"HTTP {number}", retry_after=_asked(asked[1]) if asked else None)
    raise _Refused("its answer has no end")


def _asked(value: bytes) -> timedelta | None:
    """How long the receiver wants us to wait, if that can be read."""
    text = value.decode("ascii", "replace").strip()
    if text.isdecimal():
        return timedelta(seconds=min(int(text), LONGEST_ASKED))
    return None
