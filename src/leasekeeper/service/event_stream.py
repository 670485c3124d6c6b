"""Server-sent events to one reader: until they end, the reader has left, or the token of the stream is refused.

Knows nothing of what the messages say.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from leasekeeper.errors import NotAuthenticated
from leasekeeper.service.auth import Authenticator
from leasekeeper.service.problems import problem
from leasekeeper.service.token_watch import while_valid

MEDIA: Final = "text/event-stream"
_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventStream(StreamingResponse):
    """`leave` is called at the end, even if the stream never began. If the token is refused meanwhile, the last message
    is `refused`, with the reason.
    """

    def __init__(
        self, messages: AsyncGenerator[str, None], *, auth: Authenticator, token: str, leave: Callable[[], None]
    ) -> None:
        super().__init__((), media_type=MEDIA, headers=_HEADERS)
        self._messages = messages
        self._still_valid = partial(auth.identify, token)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            last = "" if scope["method"] == "HEAD" else await self._stream(receive, send)
            if last is not None:
                await send({"type": "http.response.body", "body": last.encode(), "more_body": False})
        finally:
            await self._messages.aclose()
            self._leave()

    async def _stream(self, receive: Receive, send: Send) -> str | None:
        """Send until the end. Returns the last message to send; None: the reader has disconnected."""
        sending = asyncio.ensure_future(while_valid(self._still_valid, self._send(send)))
        leaving = asyncio.ensure_future(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                return None
            sending.result()
        except NotAuthenticated as refused:
            return f"event: refused\ndata: {json.dumps(problem(refused))}\n\n"
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        return ""

    async def _send(self, send: Send) -> None:
        async with aclosing(self._messages) as messages:
            async for text in messages:
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
