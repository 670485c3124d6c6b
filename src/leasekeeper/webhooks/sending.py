"""One POST to a receiver, with a timeout, to an allowed address.

DNS is queried once, and the connection goes to an address that was checked: a host name cannot lead into the private
network. Redirects are not followed. Only the head of the response is read, and no text of a receiver gets into our
messages, which are stored and shown.
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

from leasekeeper.errors import InputError
from leasekeeper.threads import run_in_thread

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_HEAD: Final = 64 * 1024
MAX_INTERIM: Final = 8
MAX_ADDRESSES: Final = 4
MAX_RETRY_AFTER_SECONDS: Final = 7 * 86_400
MAX_DRAINED: Final = 64 * 1024
DRAIN_SECONDS: Final = 1.0

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9]\d\d)(?: |\r|$)")
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after:[ \t]*([^\r\n]{1,64})", re.IGNORECASE)
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f-\U0010ffff]")
# DNS lookups in progress. Callers that wait for the same name share one.
_LOOKUPS: Final[dict[tuple[asyncio.AbstractEventLoop, str, int], "asyncio.Future[list[Any]]"]] = {}
# NAT64 addresses contain the IPv4 address where the connection really ends.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
# The special-purpose addresses of IANA's registries, multicast included, as one list: what `ipaddress` calls global
# differs between versions of Python. Of blocks with a few public addresses inside, none counts as public.
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_SPECIAL: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/3", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of a POST. `message` is our own text, for people. Without a `status` there was no response."""

    message: str
    status: int | None = None
    retry_after: timedelta | None = None


def read_networks(text: str) -> tuple[Network, ...]:
    """Parse a setting: networks separated by spaces, e.g. `10.0.0.0/8 127.0.0.1`."""
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
    """Whether a webhook may go there: public addresses always, others only inside these networks."""
    inner = _embedded(address)
    if any(each.version == network.version and each in network for each in (address, inner) for network in networks):
        return True
    if isinstance(inner, ipaddress.IPv6Address) and inner not in _GLOBAL_UNICAST:
        return False
    return not any(inner.version == network.version and inner in network for network in _SPECIAL)


def _embedded(address: Address) -> Address:
    """The IPv4 address inside a NAT64, 6to4 or mapped address, where the connection really ends."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


@dataclass(slots=True)
class _Step:
    """What a POST waits for, in case of a timeout, and its answer once that is known."""

    waits_for: str = "DNS lookup failed: no response"
    answer: Answer | None = None


async def post(
    url: str, headers: Mapping[str, str], body: bytes, *, seconds: float, networks: Sequence[Network] = ()
) -> Answer:
    """Send it and wait for the head of the response. `seconds` is the timeout for all of it."""
    step = _Step()
    try:
        async with asyncio.timeout(seconds):
            return await _post(urlsplit(url), headers, body, networks, seconds, step)
    except TimeoutError:
        return step.answer or Answer(message=f"{step.waits_for} within {seconds:g} s")
    except _Refused as refused:
        return Answer(message=str(refused))
    except ssl.SSLCertVerificationError as error:
        return Answer(message=f"TLS certificate invalid: {error.verify_message}")
    except ssl.SSLError as error:
        return Answer(message=f"TLS handshake failed ({error.reason or 'unknown'}): is it an https address?")
    except socket.gaierror as error:
        return Answer(message=f"DNS lookup failed: {error.strerror}")
    except UnicodeError:  # a label that is empty or too long
        return Answer(message="DNS lookup failed: not a valid host name")
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        return Answer(message=_describe(error))


class _Refused(Exception):
    """The URL must not be called, or the response is not valid HTTP. The message is our own text."""


def _describe(error: Exception) -> str:
    if isinstance(error, asyncio.LimitOverrunError):
        return f"the response has more than {MAX_HEAD // 1024} KB of headers"
    if isinstance(error, EOFError):
        return "the receiver closed the connection without a response"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    number = getattr(error, "errno", None)
    return f"connection failed: {os.strerror(number) if number else type(error).__name__}"


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
        raise _Refused("the URL is not an http or https one")
    if _FORBIDDEN.search(target) or _FORBIDDEN.search(parts.netloc):
        raise _Refused("the URL has characters that cannot be sent")
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
    addresses = await _allowed_addresses(parts.hostname, port, networks)
    step.waits_for = "no connection"
    reader, writer = await _connect(parts, port, addresses, seconds)
    try:
        step.waits_for = "no response"
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        await writer.drain()
        step.answer = await _read_answer(reader)
        await _drain_body(reader)
        return step.answer
    finally:
        writer.transport.abort()


async def _drain_body(reader: asyncio.StreamReader) -> None:
    """Read the body for a moment and discard it: some receivers abort their work if the connection closes early."""
    left = MAX_DRAINED
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0 and (piece := await reader.read(left)):
                left -= len(piece)


async def _allowed_addresses(host: str, port: int, networks: Sequence[Network]) -> list[Address]:
    """The addresses of a host, without those that must not be called."""
    try:
        addresses: list[Address] = [ipaddress.ip_address(host)]
    except ValueError:
        found = await _resolve_host(host, port)
        addresses = list(dict.fromkeys(ipaddress.ip_address(info[4][0]) for info in found))
    allowed = [address for address in addresses if may_be_called(address, networks)]
    if not allowed:
        raise _Refused(
            f"{', '.join(map(str, addresses[:MAX_ADDRESSES])) or host} is not a public address: to allow it, "
            "add its network to LEASEKEEPER_WEBHOOK_NETWORKS"
        )
    return allowed[:MAX_ADDRESSES]


async def _connect(
    parts: SplitResult, port: int, addresses: Sequence[Address], seconds: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that accepts. Each address but the last has only its share of the timeout."""
    context = await run_in_thread(_tls_context) if parts.scheme == "https" else None
    share = seconds / (len(addresses) + 1)
    for number, address in enumerate(addresses, 1):
        last = number == len(addresses)
        try:
            async with asyncio.timeout(None if last else share):
                return await asyncio.open_connection(
                    str(address),
                    port,
                    limit=MAX_HEAD,
                    ssl=context,
                    server_hostname=parts.hostname if context else None,
                )
        except ssl.SSLError:
            raise
        except (OSError, TimeoutError):
            if last:
                raise
    raise _Refused("DNS lookup failed: the name has no address")


async def _resolve_host(host: str, port: int) -> "list[Any]":
    """The addresses of a host name. Each lookup has a daemon thread of its own: a DNS server that does not respond must
    delay nothing else, not even the end of the process."""
    loop = asyncio.get_running_loop()
    known = _LOOKUPS.get((loop, host, port))
    if known is None:
        known = _LOOKUPS[loop, host, port] = loop.create_future()
        known.add_done_callback(lambda _: _LOOKUPS.pop((loop, host, port), None))
        name = f"leasekeeper-webhook-name-{host}"
        try:
            threading.Thread(target=_lookup, args=(loop, known, host, port), name=name, daemon=True).start()
        except BaseException:
            del _LOOKUPS[loop, host, port]  # no thread would ever complete it
            raise
    return await asyncio.shield(known)


def _lookup(loop: asyncio.AbstractEventLoop, future: "asyncio.Future[list[Any]]", host: str, port: int) -> None:
    try:
        found, error = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), None
    except Exception as problem:  # noqa: BLE001 - the callers get it, whatever it is
        found, error = [], problem
    with suppress(RuntimeError):  # the loop is closed, and its callers are gone
        loop.call_soon_threadsafe(_complete, future, found, error)


def _complete(future: "asyncio.Future[list[Any]]", found: "list[Any]", error: Exception | None) -> None:
    if error is None:
        future.set_result(found)
    else:
        future.set_exception(error)
        future.exception()  # callers may have stopped waiting: asyncio must not log it as never retrieved


@cache
def _tls_context() -> ssl.SSLContext:
    """TLS with the certificate authorities of the system, or of SSL_CERT_FILE."""
    return ssl.create_default_context()


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    """The head of the first response that is not an interim (1xx) one."""
    for _ in range(MAX_INTERIM):
        head = await reader.readuntil(b"\r\n\r\n")
        status = _STATUS.match(head)
        if status is None:
            raise _Refused("the response is not HTTP")
        number = int(status[1])
        if number >= 200:
            asked = _RETRY_AFTER.search(head)
            retry_after = _retry_after(asked[1]) if asked else None
            return Answer(status=number, message=f"HTTP {number}", retry_after=retry_after)
    raise _Refused(f"more than {MAX_INTERIM} interim (1xx) responses")


def _retry_after(value: bytes) -> timedelta | None:
    """The value of Retry-After in seconds; None for dates and anything else."""
    text = value.decode("ascii", "replace").strip()
    if text.isdecimal():
        return timedelta(seconds=min(int(text), MAX_RETRY_AFTER_SECONDS))
    return None
