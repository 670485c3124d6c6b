"""The address of a session on this machine: a WebSocket on loopback that speaks DevTools, for clients with its token.

The browser has no debugging port: each connection here is a client of the browser's keeper, and ends with the session.
"""

import asyncio
import hmac
import json
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from leasekeeper.browsers.keeper.client import MAX_COMMAND_BYTES
from leasekeeper.driver_port import ClientRefused, DevToolsClient
from leasekeeper.errors import InputError
from leasekeeper.runtime.session_run import SessionRun

if TYPE_CHECKING:
    from websockets.asyncio.server import Server, ServerConnection
    from websockets.http11 import Request, Response

PING_SECONDS: Final = 25.0
GONE_SECONDS: Final = 60.0
VERSION_PATHS: Final = ("/json/version", "/json/version/")
ENDED: Final = 4410  # a close code of our own: the session is over, do not come back


class SessionEndpoint:
    """Open from `open` to `close`. After the session's end it answers 410 and says why."""

    def __init__(self, session: SessionRun) -> None:
        self.session = session
        self._token = secrets.token_urlsafe(32)
        self._server: Server | None = None
        self._port = 0

    async def open(self) -> str:
        """Listen, and return the address with its token. Raises InputError if the WebSocket library is missing."""
        try:
            from websockets.asyncio.server import serve
        except ImportError:
            raise InputError("a CDP URL needs the package websockets: pip install 'leasekeeper[sessions]'") from None
        self._server = await serve(
            self._relay,
            "127.0.0.1",
            0,
            process_request=self._answer,
            max_size=MAX_COMMAND_BYTES,
            compression=None,
            ping_interval=PING_SECONDS,
            ping_timeout=GONE_SECONDS,
        )
        self._port = next(iter(self._server.sockets)).getsockname()[1]
        return self.url

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._port}/?token={self._token}"

    async def close(self) -> None:
        """Stop listening, and disconnect the clients."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def _answer(self, connection: "ServerConnection", request: "Request") -> "Response | None":
        """Refuse requests without the token, answer those for the version, let others connect. None: go on with the
        WebSocket."""
        parts = urlsplit(request.path)
        given = parse_qs(parts.query).get("token", [""])[0]
        given = given or request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return connection.respond(HTTPStatus.UNAUTHORIZED, "no token of this session: use its whole URL\n")
        if self.session.over or self.session.lost is not None:
            return connection.respond(HTTPStatus.GONE, f"the session is over: {self.session.why_over}\n")
        if parts.path not in VERSION_PATHS:
            return None
        answer = connection.respond(HTTPStatus.OK, json.dumps(version_answer(self.url)))
        del answer.headers["Content-Type"]
        answer.headers["Content-Type"] = "application/json"
        return answer

    async def _relay(self, connection: "ServerConnection") -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            async with self.session.client() as client:
                sending = asyncio.ensure_future(_send_all(client, connection))
                try:
                    async for message in connection:
                        await client.send(message.encode() if isinstance(message, str) else message)
                except ConnectionClosed:
                    pass
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
        except ClientRefused as refused:
            await connection.close(ENDED, close_reason(str(refused)))


async def _send_all(client: DevToolsClient, connection: "ServerConnection") -> None:
    while (message := await client.receive()) is not None:
        await connection.send(message, text=True)
    await connection.close(ENDED, close_reason(client.why))


def close_reason(why: str) -> str:
    """The text, cut to the length that a WebSocket's close frame can carry."""
    return why.encode()[:120].decode(errors="ignore")


def version_answer(url: str) -> dict[str, str]:
    """The answer to `/json/version`, which clients request first if they are given an http address."""
    return {"Browser": "Leasekeeper", "Protocol-Version": "1.3", "webSocketDebuggerUrl": url}
