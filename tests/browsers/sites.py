"""Small servers that behave well or badly on purpose, and a real browser started as Leasekeeper starts it."""

import asyncio
import os
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from playwright.async_api import BrowserContext, Page, async_playwright

from leasekeeper.browsers.finding import find_browser
from leasekeeper.browsers.launching import launch_options
from leasekeeper.core.accounts import Proxy
from leasekeeper.core.browsers import Credentials
from leasekeeper.core.ids import AccountId, ProfileId, ProxyId
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.profiles import Profile

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(body: str = "<title>shop</title>", *, status: str = "200 OK", headers: str = "") -> Handler:
    """A server that gives the same answer to everybody."""
    return telling(lambda _: body, status=status, headers=headers)


def telling(page: Callable[[str], str], *, status: str = "200 OK", headers: str = "") -> Handler:
    """A server whose answer is made from the request's head."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        body = page(head).encode()
        kind = "" if "Content-Type" in headers else "Content-Type: text/html\r\n"
        start = f"HTTP/1.1 {status}\r\n{kind}{headers}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(start.encode() + body)
        await writer.drain()

    return handle


async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Take the request and never answer."""
    while await reader.read(1024):
        pass


async def close_empty(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Hang up without a word."""
    await reader.read(10)


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Cut the connection as a broken network would."""
    await reader.read(10)
    link = writer.get_extra_info("socket")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that lives as long as the block, with all its connections."""
    links: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            links.add(task)
        try:
            with suppress(asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
                await handler(reader, writer)
        finally:
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            links.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for link in list(links):
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)


def own_certificate(folder: Path) -> ssl.SSLContext:
    """TLS with a certificate that nobody trusts."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def options(directory: Path, **changes: Any) -> dict[str, Any]:
    """Launch options for a profile with these settings; `proxy` is its server, `login` its credentials."""
    server = changes.pop("proxy", None)
    login: Credentials | None = changes.pop("login", None)
    return launch_options(
        Profile(profile_id=ProfileId("p"), account_id=AccountId("a"), **changes),
        directory=directory,
        executable=find_browser(os.environ.get("LEASEKEEPER_BROWSER")).path,
        run_mode=RunMode.HEADLESS,
        environ=os.environ,
        root=os.geteuid() == 0,
        proxy=Proxy(proxy_id=ProxyId("exit"), server=server) if server else None,
        credentials=login,
    )


@asynccontextmanager
async def browser(directory: Path, **changes: Any) -> AsyncIterator[BrowserContext]:
    """A real browser on a directory, started as Leasekeeper starts it but without a keeper."""
    async with async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(**options(directory, **changes))
        try:
            yield context
        finally:
            await context.close()


async def open_page(context: BrowserContext, address: str) -> Page:
    """A new page at an address."""
    page = await context.new_page()
    await page.goto(address)
    return page


def processes_on(directory: Path) -> list[tuple[int, list[str]]]:
    """The command lines of every process that names the directory."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                line = (folder / "cmdline").read_bytes().decode(errors="replace")
                if f"--user-data-dir={directory}" in line:
                    found.append((int(folder.name), line.split("\0")))
    return found


async def gone(directory: Path) -> None:
    """Until the last process of a closed browser has ended: a child may outlive it by a moment."""
    while processes_on(directory):
        pass


def main_process(directory: Path) -> int:
    """The browser's own process, not one of its children: a new one has the same command line for a moment."""
    alike = [pid for pid, line in processes_on(directory) if not any("--type=" in part for part in line)]
    (pid,) = [pid for pid in alike if parent_of(pid) not in (None, *alike)]
    return pid


def parent_of(pid: int) -> int | None:
    """The process that started this one; None if this one is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def environment_of(pid: int) -> str:
    """What a process was started with; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
