"""One connection between a server and a worker that runs sessions for it: calls, news and DevTools streams in frames.

A frame is a byte for its kind, four for its number, and a body. Every stream has its own window: a stream that is not
read fills that window, and delays no other stream. Long messages are sent in pieces. Knows neither WebSockets nor
sessions; both sides use the same class.
"""

import asyncio
import json
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any, Final

from leasekeeper.browsers.keeper.orders import MAX_MESSAGE_BYTES
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.driver_port import DevToolsClient
from leasekeeper.errors import Conflict, InputError, LeasekeeperError, StoreError, safe_str
from leasekeeper.wire import error_from_json, error_to_json

VERSION: Final = 1
PIECE_BYTES: Final = 64 * 1024
WINDOW_BYTES: Final = 1024 * 1024
MAX_FRAME_BYTES: Final = 2 * 1024 * 1024
BEAT_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 20.0
# Each piece counts for this many bytes more in a window: otherwise empty pieces would have no limit.
_PIECE_COST: Final = 64
_HEAD: Final = struct.Struct("!BI")
_COUNT: Final = struct.Struct("!I")


class Kind(IntEnum):
    """The kind of a frame. Its number is that of the call, or of the stream that the call opened."""

    CALL = 1
    ANSWER = 2
    REFUSAL = 3
    CANCEL = 4
    NEWS = 5
    PIECE = 6
    LAST_PIECE = 7
    CREDIT = 8
    CLOSE = 9
    BEAT = 10


def lost_link(why: str) -> Conflict:
    """The error of a call whose connection was lost: it may have been done or not."""
    return Conflict(why, cause=ConflictReason.WORKER_AWAY)


class Stream:
    """One DevTools client over a link. Implements `DevToolsClient`: whole messages, both ways."""

    def __init__(self, link: "Link", number: int) -> None:
        self.why = ""
        self._link = link
        self._number = number
        self._pieces: deque[tuple[bytes, bool]] = deque()
        self._message = bytearray()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._may_send = WINDOW_BYTES
        self._taken = 0
        self._waiting_bytes = 0
        self._over = False
        self._sending = asyncio.Lock()

    async def send(self, message: bytes) -> None:
        """Send one message. Waits while the other side does not read. On a stream that is over, the message is
        dropped."""
        async with self._sending:
            for start in range(0, len(message) or 1, PIECE_BYTES):
                piece = message[start : start + PIECE_BYTES]
                while self._may_send <= 0 and not self._over:
                    self._room.clear()
                    await self._room.wait()
                if self._over:
                    return
                self._may_send -= len(piece) + _PIECE_COST
                last = start + PIECE_BYTES >= len(message)
                await self._link.send(Kind.LAST_PIECE if last else Kind.PIECE, self._number, piece)

    async def receive(self) -> bytes | None:
        """The next message; None once the stream is over and everything before its end was read."""
        while True:
            while self._pieces:
                piece, last = self._pieces.popleft()
                self._message += piece
                if len(self._message) > MAX_MESSAGE_BYTES:
                    self.why = f"a message is longer than {MAX_MESSAGE_BYTES:,} bytes"
                    await self.close()
                    return None
                await self._take(len(piece) + _PIECE_COST)
                if last:
                    message = bytes(self._message)
                    self._message.clear()
                    return message
            if self._over:
                return None
            self._arrived.clear()
            await self._arrived.wait()

    async def close(self) -> None:
        """End the stream, and send the other side the reason if there is one."""
        if not self._over:
            self.end(self.why)
            await self._link.send(Kind.CLOSE, self._number, self.why.encode())

    def end(self, why: str) -> None:
        """Mark the stream as over, without sending anything. What has arrived can still be read."""
        self._over = True
        self.why = self.why or why
        self._link.forget(self._number, self)
        self._arrived.set()
        self._room.set()

    def arrived(self, piece: bytes, *, last: bool) -> bool:
        """A piece has arrived. Returns False if the other side sent more than the window allows."""
        self._waiting_bytes += len(piece) + _PIECE_COST
        self._pieces.append((piece, last))
        self._arrived.set()
        return self._waiting_bytes <= WINDOW_BYTES + PIECE_BYTES + _PIECE_COST

    def credit(self, count: int) -> None:
        """The other side has read this many bytes: as many more may be sent."""
        self._may_send = min(self._may_send + count, WINDOW_BYTES)
        self._room.set()

    async def _take(self, count: int) -> None:
        self._waiting_bytes -= count
        self._taken += count
        if self._taken >= WINDOW_BYTES // 4:
            taken, self._taken = self._taken, 0
            await self._link.send(Kind.CREDIT, self._number, _COUNT.pack(taken))


class IncomingCall:
    """A call of the other side. What `perform` returns is the answer, unless one was sent before."""

    def __init__(self, link: "Link", number: int, name: str, arguments: Mapping[str, Any]) -> None:
        self.name = name
        self.arguments = arguments
        self.answered = False
        self._link = link
        self._number = number

    async def accept(self) -> Stream:
        """Answer with a stream, which has the number of the call."""
        stream = self._link.open_stream(self._number)
        await self.answer(None)
        return stream

    async def answer(self, value: object) -> None:
        self.answered = True
        await self._link.send(Kind.ANSWER, self._number, json.dumps(value).encode())

    async def refuse(self, error: LeasekeeperError) -> None:
        self.answered = True
        await self._link.send(Kind.REFUSAL, self._number, json.dumps(error_to_json(error)).encode())


async def relay(call: IncomingCall, client: DevToolsClient, why_over: Callable[[], str]) -> None:
    """Answer a call with a stream, and relay messages between the client on it and the browser until one of them
    leaves."""
    stream = await call.accept()
    answering = asyncio.ensure_future(_answer_all(client, stream, why_over))
    try:
        while (message := await stream.receive()) is not None:
            await client.send(message)
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        await stream.close()


async def _answer_all(client: DevToolsClient, stream: Stream, why_over: Callable[[], str]) -> None:
    while (message := await client.receive()) is not None:
        await stream.send(message)
    stream.why = client.why or why_over()
    await stream.close()


Perform = Callable[[IncomingCall], Awaitable[object]]


class Link:
    """One side of a connection. `send_frame` sends a frame and may wait; it raises once the connection is gone.

    `perform` does the other side's calls. `on_news` gets its notifications, `on_orphan` the answer of a call whose
    caller has left.
    """

    def __init__(
        self,
        send_frame: Callable[[bytes], Awaitable[None]],
        *,
        perform: Perform | None = None,
        on_news: Callable[[Mapping[str, Any]], None] | None = None,
        on_orphan: Callable[[Any], None] | None = None,
    ) -> None:
        self._send_frame = send_frame
        self._perform = perform
        self._on_news = on_news
        self._on_orphan = on_orphan
        self._turn = asyncio.Lock()
        self._number = 0
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._left: set[int] = set()
        self._streams: dict[int, Stream] = {}
        self._working: dict[int, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.lost: str | None = None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call the other side and return its answer. Raises what it refused with, or Conflict (WORKER_AWAY) if the
        connection is lost."""
        return (await self._ask(name, arguments))[1]

    async def open(self, name: str, arguments: Mapping[str, Any]) -> Stream:
        """Make a call that the other side answers with a stream. Raises what `call` does."""
        return self.open_stream((await self._ask(name, arguments, stream=True))[0])

    async def _ask(self, name: str, arguments: Mapping[str, Any], *, stream: bool = False) -> tuple[int, Any]:
        self._number += 1
        number = self._number
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        if stream:
            self.open_stream(number)  # pieces right after the answer must not be lost
        try:
            await self.send(Kind.CALL, number, json.dumps({"name": name, "arguments": arguments}).encode())
            if self.lost is not None:
                raise lost_link(self.lost)
            return number, await answer
        except BaseException as error:
            if stream:
                self._streams.pop(number, None)
            if isinstance(error, asyncio.CancelledError):
                self._leave(number, answer)
            raise
        finally:
            self._asked.pop(number, None)

    def _leave(self, number: int, answer: "asyncio.Future[Any]") -> None:
        """The caller has left: cancel its call on the other side. An answer that has just arrived, or arrives later,
        goes to `on_orphan`."""
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            if self._on_orphan is not None:
                self._on_orphan(answer.result())
        elif self.lost is None:
            self._left.add(number)
            self._begin(self.send(Kind.CANCEL, number))

    def open_stream(self, number: int) -> Stream:
        """The stream with the number of a call; made if there is none yet. On a lost connection it is over."""
        found = self._streams.setdefault(number, Stream(self, number))
        if self.lost is not None:
            found.end(self.lost)
        return found

    def forget(self, number: int, stream: Stream) -> None:
        """Remove a stream that is over."""
        if self._streams.get(number) is stream:
            del self._streams[number]

    def notify(self, news: Mapping[str, Any]) -> None:
        """Send news, in the order of calls. Never waits."""
        self._begin(self.send(Kind.NEWS, 0, json.dumps(news).encode()))

    async def flush(self) -> None:
        """Wait until every notification is sent."""
        while self._background:
            await asyncio.wait(self._background)

    async def send(self, kind: Kind, number: int, body: bytes = b"") -> None:
        """Send a frame, after those before it. On a lost connection it is dropped: `run` notices the loss and ends
        everything."""
        async with self._turn:
            if self.lost is None:
                with suppress(Exception):  # whatever it is, the connection is gone, and its reader notices too
                    await self._send_frame(_HEAD.pack(kind, number) + body)

    async def run(self, receive: Callable[[], Awaitable[bytes | None]], *, beat: bool = False) -> str:
        """Read frames until the connection ends, and end everything on it. Returns why it ended."""
        beating = asyncio.ensure_future(self._beat()) if beat else None
        why = "the connection ended"
        try:
            while (frame := await receive()) is not None:
                self._take(frame)
        except LeasekeeperError as error:
            why = error.message
        finally:
            if beating is not None:
                beating.cancel()
            self.lose(why)
            await asyncio.gather(*self._working.values(), return_exceptions=True)
        return why

    def lose(self, why: str) -> None:
        """The connection is gone: every call on it fails, every stream ends, the other side's calls are cancelled."""
        if self.lost is not None:
            return
        self.lost = why
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(lost_link(why))
                answer.exception()  # the caller may have left
        for stream in list(self._streams.values()):
            stream.end(why)
        for task in self._working.values():
            task.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self.send(Kind.BEAT, 0)

    def _take(self, frame: bytes) -> None:
        if len(frame) < _HEAD.size:
            raise StoreError("a frame is too short")
        kind, number = _HEAD.unpack_from(frame)
        body = frame[_HEAD.size :]
        match kind:
            case Kind.PIECE | Kind.LAST_PIECE | Kind.CREDIT | Kind.CLOSE:
                if (stream := self._streams.get(number)) is not None:
                    _take_streamed(stream, kind, body)
            case Kind.ANSWER | Kind.REFUSAL:
                self._answered(number, _json(body), refused=kind == Kind.REFUSAL)
            case Kind.CALL if self._perform is not None:
                self._work(self._perform, number, _json(body))
            case Kind.CANCEL:
                if number in self._working:
                    self._working[number].cancel()
            case Kind.NEWS if self._on_news is not None:
                self._on_news(_object(_json(body)))
            case _:
                pass  # a beat, or what a later version says

    def _answered(self, number: int, value: Any, *, refused: bool) -> None:
        waiting = self._asked.get(number)
        if waiting is not None and not waiting.done():
            if refused:
                waiting.set_exception(error_from_json(value))
            else:
                waiting.set_result(value)
        elif number in self._left:
            self._left.discard(number)
            if not refused and self._on_orphan is not None:
                self._on_orphan(value)

    def _work(self, perform: Perform, number: int, asked: Any) -> None:
        found = _object(asked)
        call = IncomingCall(self, number, str(found.get("name")), _object(found.get("arguments")))
        task = asyncio.ensure_future(_performed(perform, call))
        self._working[number] = task
        task.add_done_callback(lambda _: self._working.pop(number, None))

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _take_streamed(stream: Stream, kind: int, body: bytes) -> None:
    if kind == Kind.CLOSE:
        stream.end(body.decode(errors="replace"))
    elif kind == Kind.CREDIT and len(body) == _COUNT.size:
        stream.credit(_COUNT.unpack(body)[0])
    elif kind != Kind.CREDIT and not stream.arrived(body, last=kind == Kind.LAST_PIECE):
        raise StoreError("more was sent on a stream than it had room for")


async def _performed(perform: Perform, call: IncomingCall) -> None:
    try:
        value = await perform(call)
        if not call.answered:
            await call.answer(value)
    except asyncio.CancelledError:
        if not call.answered:
            await call.refuse(lost_link("the call was cancelled"))
    except LeasekeeperError as error:
        if not call.answered:
            await call.refuse(error)
    except Exception as error:  # noqa: BLE001 - an error of ours must not cost the others their connection
        if not call.answered:
            await call.refuse(LeasekeeperError(f"the worker failed at {call.name}: {safe_str(error)}"))


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise StoreError("a frame is not JSON") from None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError("a frame of a link is not an object")
    return value
