"""The live look through a proxy: real sockets, a small proxy of each kind, three answers."""

import asyncio
import base64
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.browsers.probe import Probe, ProbeResult, probe
from leasekeeper.core.browsers import Credentials
from tests.browsers.sites import Handler, answer, close_empty, hang, own_certificate, serving, telling
from tests.servers import closed_port

LOGIN = Credentials(username="user", password="hunter-2-secret")  # noqa: S106 - nobody's password
JSON = "Content-Type: application/json\r\n"
PATIENCE = 60.0  # for a proxy that answers: the machine may be busy
BERLIN = '{"ip": "192.0.2.7", "country": "DE", "city": "Berlin", "secret": "x"}'


async def probed(server: str, url: str = "http://where.test/ip", **changes: Any) -> Probe:
    return await asyncio.to_thread(probe, server, url, **{"seconds": PATIENCE, **changes})


async def test_an_exit_where_it_should_be_is_ok() -> None:
    async with serving(answer(BERLIN, headers=JSON)) as port:
        server = f"http://127.0.0.1:{port}"
        for expected in (None, "DE", "de", "192.0.2.7", "Berlin"):
            found = await probed(server, expected=expected)
            assert (found.result, found.seen) == (ProbeResult.OK, "ip 192.0.2.7, country DE, city Berlin")
            assert found.region == {"192.0.2.7": "192.0.2.7", "Berlin": "Berlin"}.get(expected or "", "DE")


async def test_an_exit_elsewhere_has_changed() -> None:
    async with serving(answer(BERLIN, headers=JSON)) as port:
        found = await probed(f"http://127.0.0.1:{port}", expected="US")
    assert (found.result, found.region) == (ProbeResult.CHANGED, "DE")
    assert found.detail == "expected US, seen ip 192.0.2.7, country DE, city Berlin"


async def test_plain_text_is_an_answer_too() -> None:
    async with serving(answer("192.0.2.7\n")) as port:
        assert (await probed(f"http://127.0.0.1:{port}", expected="192.0.2.7")).result is ProbeResult.OK
        assert (await probed(f"http://127.0.0.1:{port}", expected="192.0.2.8")).result is ProbeResult.CHANGED


async def test_a_proxy_that_asks_for_a_login_gets_it() -> None:
    heads: list[str] = []

    def page(head: str) -> str:
        heads.append(head)
        return "DE"

    async with serving(telling(page)) as port:
        assert (await probed(f"http://127.0.0.1:{port}", credentials=LOGIN)).result is ProbeResult.OK
    assert heads[0].startswith("GET http://where.test/ip HTTP/1.1")
    assert base64.b64encode(b"user:hunter-2-secret").decode() in heads[0]


async def test_no_answer_is_a_failed_check_in_words() -> None:
    with closed_port() as nobody:
        async with (
            serving(hang) as silent,
            serving(close_empty) as empty,
            serving(answer("", status="407 Login")) as refusing,
            serving(answer("not http", status="x y z")) as wrong,
        ):
            for port, words in (
                (nobody, "Connection refused"),
                (silent, "timeout"),
                (empty, "RemoteDisconnected"),
                (refusing, "status 407"),
                (wrong, "BadStatusLine"),
            ):
                seconds = 0.5 if port == silent else PATIENCE
                found = await probed(f"http://127.0.0.1:{port}", seconds=seconds, expected="DE", credentials=LOGIN)
                assert found.result is ProbeResult.FAILED
                assert words in found.detail
                assert "hunter" not in found.detail


async def tunnel(first: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[int]]) -> Handler:
    """A proxy that, after its first words with a client, joins it to the port they agreed on."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = await first(reader, writer)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)

        async def pump(source: asyncio.StreamReader, into: asyncio.StreamWriter) -> None:
            while data := await source.read(4096):
                into.write(data)
            into.close()
            await into.wait_closed()

        try:
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)
        finally:
            far_writer.close()
            with suppress(OSError):
                await far_writer.wait_closed()

    return handle


async def test_https_is_asked_for_through_a_tunnel(tmp_path: Path) -> None:
    heads: list[str] = []

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        return port

    async with serving(answer("DE"), own_certificate(tmp_path)) as port, serving(await tunnel(connect)) as proxy:
        found = await probed(f"http://127.0.0.1:{proxy}", f"https://localhost:{port}/", credentials=LOGIN)
    assert heads[0].startswith(f"CONNECT localhost:{port} ")
    assert "Proxy-Authorization: Basic" in heads[0]
    # The tunnel works; the certificate behind it is not trusted, and must not be.
    assert (found.result, "SSL" in found.detail or "verify" in found.detail) == (ProbeResult.FAILED, True)


def dripping(words: bytes, ready: Callable[[bytes], bool]) -> Handler:
    """A proxy that takes three seconds for its words: a byte, a moment, a byte."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = b""
        while not ready(asked):
            asked += await reader.read(1024)
        for byte in words:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(3 / len(words))  # waits: this proxy is slow, that is its purpose

    return handle


SLOW = [
    ("http", "http", b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 40 + b"\r\nContent-Length: 2\r\n\r\nDE"),
    ("http", "http", b"HTTP/1.1 200 OK\r\n\r\n" + b"DE" * 30),
    ("http", "https", b"HTTP/1.1 407 Login\r\nX-Slow: " + b"x" * 40 + b"\r\nContent-Length: 0\r\n\r\n"),
    ("socks5", "http", b"\x05\x00\x05\x00\x00\x03\x20" + b"\x00" * 34),
]


@pytest.mark.parametrize(("scheme", "wanted", "words"), SLOW, ids=["headers", "body", "tunnel", "socks"])
async def test_a_proxy_that_drips_has_no_more_time_than_a_silent_one(scheme: str, wanted: str, words: bytes) -> None:
    begun = (lambda asked: asked != b"") if scheme == "socks5" else (lambda asked: asked.endswith(b"\r\n\r\n"))
    async with serving(dripping(words, begun)) as port:
        found = await probed(f"{scheme}://127.0.0.1:{port}", f"{wanted}://where.test/", seconds=1.0)
    assert (found.result, found.detail) == (ProbeResult.FAILED, "no response through the proxy: timeout")


def socks(port: int, seen: list[bytes], *, login: bool) -> Callable[..., Awaitable[int]]:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        _, methods = await reader.readexactly(2)
        offered = await reader.readexactly(methods)
        wanted = 2 if login else 0
        writer.write(bytes([5, wanted if wanted in offered else 255]))
        if login and wanted in offered:
            _, length = await reader.readexactly(2)
            seen.append(await reader.readexactly(length))
            seen.append(await reader.readexactly((await reader.readexactly(1))[0]))
            writer.write(b"\x01\x00")
        length = (await reader.readexactly(5))[4]
        seen.append(await reader.readexactly(length))
        await reader.readexactly(2)
        writer.write(b"\x05\x00\x00\x01" + bytes(4) + struct.pack("!H", 1))
        return port

    return greet


async def test_a_socks_proxy_is_asked_with_and_without_a_login() -> None:
    async with serving(answer("DE")) as port:
        for credentials in (None, LOGIN):
            seen: list[bytes] = []
            handler = await tunnel(socks(port, seen, login=credentials is not None))
            async with serving(handler) as proxy:
                found = await probed(f"socks5://127.0.0.1:{proxy}", expected="DE", credentials=credentials)
            assert found.result is ProbeResult.OK
            assert seen == ([b"user", b"hunter-2-secret"] if credentials else []) + [b"where.test"]


async def test_a_socks_proxy_that_wants_a_login_we_do_not_have_has_failed() -> None:
    async with serving(await tunnel(socks(1, [], login=True))) as proxy:
        found = await probed(f"socks5://127.0.0.1:{proxy}")
    assert (found.result, found.detail) == (
        ProbeResult.FAILED,
        "no response through the proxy: the proxy requires another login method",
    )


async def test_what_is_not_supported_says_so() -> None:
    found = await probed("https://proxy.test:443", "https://where.test/")
    assert (found.result, "not supported" in found.detail) == (ProbeResult.FAILED, True)
