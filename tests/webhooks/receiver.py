"""A receiver of webhooks that keeps what it got, and judges signatures by itself: it shares no code with the sender."""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.browsers.sites import serving

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@dataclass(slots=True)
class Message:
    """One request as it came in."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def said(self) -> Any:
        return json.loads(self.body)

    def signed_with(self, secret: str) -> bool:
        """What a receiver does, by the words of the specification."""
        content = b".".join((self.id.encode(), self.headers["webhook-timestamp"].encode(), self.body))
        key = base64.b64decode(secret.removeprefix("whsec_"))
        expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        marks = [mark.split(",", 1) for mark in self.headers["webhook-signature"].split(" ")]
        return any(version == "v1" and hmac.compare_digest(mark, expected) for version, mark in marks)


@dataclass(slots=True)
class Receiver:
    """Where it listens, what came, and what it answers: a status for each message."""

    answers: Callable[[Message], str | None]
    url: str = ""
    messages: list[Message] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
        line, *fields = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in fields)}
        body = await reader.readexactly(int(headers["content-length"]))
        message = Message(line, headers, body)
        self.messages.append(message)
        self.came.set()
        status = self.answers(message)
        if status is None:
            await reader.read()  # it never answers: until the sender has had enough
            return
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nok".encode())
        await writer.drain()


@asynccontextmanager
async def receiving(
    answers: Callable[[Message], str | None] = lambda _: "204 No Content", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    receiver = Receiver(answers)
    async with serving(receiver.handle, tls) as port:
        receiver.url = f"http{'s' if tls else ''}://127.0.0.1:{port}/hook"
        yield receiver
