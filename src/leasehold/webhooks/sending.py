"""One POST to a receiver, in its time, to an address that may be called.

The name is looked up once, and the connection goes to an address that was checked: a name cannot lead into the network
behind this machine. Redirects are not followed, and of the answer only its head is read. What a receiver says never
gets into our words: they are kept and shown.
"""

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from leasehold.errors import InputError

T = TypeVar("T")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_HEAD: Final = 64 * 1024
MOST_INTERIM: Final = 8
MOST_ADDRESSES: Final = 4
LONGEST_ASKED: Final = 7 * 86_400

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9]\d\d)(?: |\r|$)")
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after:[ \t]*([^\r\n]{1,64})", re.IGNORECASE)
_UNFIT: Final = re.compile(r"[\x00-\x20\x7f-\U0010ffff]")
# Threads of their own: a name server that does not answer must hold up nothing else.
_LOOKUPS: Final = ThreadPoolExecutor(8, thread_name_prefix="leasehold-webhook-names")
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
            raise InputError(
                f"LEASEHOLD_WEBHOOK_NETWORKS: {word!r} is not a network; write 10.0.0.0/8 or 127.0.0.1, several "
                "separated by spaces"
            ) from None
    return tuple(networks)


def may_be_called(address: Address, networks: Sequence[Network]) -> bool:
    """Public addresses always may, others only inside these networks."""
    inner = _inner(address)
    if any(each.version == network.version and each in network for each in (address, inner) for network in networks):
        return True
    return inner.is_global and not inner.is_multicast and not inner.is_reserved


def _inner(address: Address) -> Address:
    """The address where a connection to this one ends."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


async def post(
    url: str, headers: Mapping[str, str], body: bytes, *, seconds: float, networks: Sequence[Network] = ()
) -> Answer:
    """Send it and wait for the head of the answer; `seconds` are for all of it."""
    try:
        async with asyncio.timeout(seconds):
            return await _post(urlsplit(url), headers, body, networks)
    except TimeoutError:
        return Answer(words=f"no answer within {seconds:g} s")
    except _Refused as refused:
        return Answer(words=str(refused))
    except ssl.SSLCertVerificationError as error:
        return Answer(words=f"its certificate is not valid: {error.verify_message}")
    except ssl.SSLError as error:
        return Answer(words=f"no secure connection: {error.reason or 'TLS failed'}")
    except socket.gaierror as error:
        return Answer(words=f"its name cannot be looked up: {error.strerror}")
    except (OSError, EOFError, asyncio.LimitOverrunError) as error:
        return Answer(words=_words(error))


class _Refused(Exception):
    """It must not be sent, or what came back is no answer. The message is ours."""


def _words(error: Exception) -> str:
    if isinstance(error, asyncio.LimitOverrunError):
        return "its answer is too long"
    if isinstance(error, EOFError):
        return "it hung up without an answer"
    return f"no connection: {getattr(error, 'strerror', None) or type(error).__name__}"


async def _post(parts: SplitResult, headers: Mapping[str, str], body: bytes, networks: Sequence[Network]) -> Answer:
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
        "user-agent: leasehold",
        "accept: */*",
        "connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    reader, writer = await _connect(parts, networks)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        await writer.drain()
        return await _answer(reader)
    finally:
        writer.transport.abort()


async def _connect(
    parts: SplitResult, networks: Sequence[Network]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    found = await _looked_up(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    addresses = list(dict.fromkeys(ipaddress.ip_address(info[4][0]) for info in found))
    allowed = [address for address in addresses if may_be_called(address, networks)]
    if not allowed:
        raise _Refused(
            f"{', '.join(map(str, addresses[:MOST_ADDRESSES])) or host} is not a public address: if it is meant, "
            "allow its network with LEASEHOLD_WEBHOOK_NETWORKS"
        )
    context = await _looked_up(_trust) if secure else None
    problem: OSError | None = None
    for address in allowed[:MOST_ADDRESSES]:
        try:
            return await asyncio.open_connection(
                str(address), port, limit=MOST_HEAD, ssl=context, server_hostname=host if secure else None
            )
        except ssl.SSLError:
            raise
        except OSError as error:
            problem = error
    raise problem or _Refused("it has no address")


async def _looked_up(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_LOOKUPS, work)


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
