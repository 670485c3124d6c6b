"""Threads that run database calls, and batches of operations that share a transaction.

Passing a call to a thread costs about as much as a small statement, so each operation is one call. Operations that can
share a transaction (see `Batcher`) wait for the current batch and then run as the next one.
"""

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from leasekeeper.errors import StoreError, StoreNotWritable, StoreUnavailable

T = TypeVar("T")
Item = TypeVar("Item")
Raw = TypeVar("Raw")
Answer = TypeVar("Answer")

_Entries = list[tuple[Item, "asyncio.Future[Answer]"]]
_Call = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Threads:
    """A few threads that run calls in the order of arrival. Cheaper than an executor: one wake-up in each direction."""

    def __init__(self, count: int, name: str, at_end: Callable[[], None]) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._count = count
        self._name = name
        self._at_end = at_end
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()
        self._closed = False

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run the call in one of the threads. Raises StoreUnavailable after `close`."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._idle == 0 and len(self._threads) < self._count:
            self._add()
        self._calls.put((work, loop, future))
        return future

    def close(self) -> None:
        """Finish the calls that were given and end the threads."""
        self._closed = True
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _add(self) -> None:
        thread = threading.Thread(target=self._loop, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _loop(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            call = self._calls.get()
            with self._lock:
                self._idle -= 1
            if call is None:
                self._at_end()
                return
            work, loop, future = call
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller, whatever it is
                _answer(loop, future, None, error)
            else:
                _answer(loop, future, result, None)


def _answer(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]", result: Any, error: BaseException | None
) -> None:
    try:
        loop.call_soon_threadsafe(_resolve, future, result, error)
    except RuntimeError:
        return  # the caller's loop is gone, and the caller with it


def _resolve(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


# After these errors a batch is not repeated item by item: the store failed, or the batch may have been committed.
_ALL_FAIL = (StoreUnavailable, StoreNotWritable, asyncio.CancelledError, KeyboardInterrupt, SystemExit)


class Batcher(Generic[Item, Raw, Answer]):
    """Sends items in batches: those that arrive in the same turn of the event loop, or while a batch is running.

    The first item is sent in the next turn of the loop, without waiting for more. Answers have the order of the items.
    `send` starts a batch of at most `limit` items, `finish` turns its result into one answer per item, and `unwanted`
    gets the answer of a caller that was cancelled. No tasks are used: each would cost a turn of the loop.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Item]], "asyncio.Future[Raw]"],
        finish: Callable[[Raw], Sequence[Answer]],
        limit: int,
        unwanted: Callable[[Answer], Awaitable[None]],
    ) -> None:
        self._send = send
        self._finish = finish
        self._limit = limit
        self._unwanted = unwanted
        self._waiting: _Entries[Item, Answer] = []
        self._alone: _Entries[Item, Answer] = []
        self._busy: asyncio.AbstractEventLoop | None = None
        self._undo: list[asyncio.Future[None]] = []

    async def put(self, item: Item) -> Answer:
        """The answer to this item. If its batch fails because of an item, the items are sent one by one, so that only
        the wrong one fails. If the store failed, all items of the batch fail."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        if self._busy is not loop:
            if self._busy is not None:
                if self._busy.is_running():
                    raise StoreError("this store is in use in another event loop; open one in each")
                # That loop has ended, and its callers with it.
                self._waiting, self._alone = [], []
            self._busy = loop
            loop.call_soon(self._send_batches)
        self._waiting.append((item, future))
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # The answer came, and the caller was cancelled before it could take it.
                self._give_back([future.result()])
            raise

    def _send_batches(self) -> None:
        """Send waiting items, until a batch is running or nothing is left."""
        while batch := self._next():
            try:
                sent = self._send([item for item, _ in batch])
            except BaseException as error:
                self._failed(batch, error)
                if isinstance(error, Exception):
                    continue
                self._busy = None
                raise
            if not sent.done():
                sent.add_done_callback(partial(self._arrived, batch))
                return
            self._deliver(batch, sent)
        self._busy = None

    def _next(self) -> "_Entries[Item, Answer]":
        """The next batch, without the items of cancelled callers."""
        batch: _Entries[Item, Answer] = []
        while not batch and (self._alone or self._waiting):
            if self._alone:
                batch = [self._alone.pop(0)]
            else:
                batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
            batch = [entry for entry in batch if not entry[1].cancelled()]
        return batch

    def _arrived(self, batch: "_Entries[Item, Answer]", sent: "asyncio.Future[Raw]") -> None:
        try:
            self._deliver(batch, sent)
        finally:
            self._send_batches()

    def _deliver(self, batch: "_Entries[Item, Answer]", sent: "asyncio.Future[Raw]") -> None:
        try:
            raw = sent.result()
        except BaseException as error:  # noqa: BLE001 - it belongs to the callers, whatever it is
            self._failed(batch, error)
            return
        try:
            answers = self._finish(raw)
        except Exception as error:  # noqa: BLE001 - the batch was done: whatever this is, it must not be sent again
            for _, future in batch:
                _resolve(future, None, StoreError(f"the operation was committed, but its answer is lost: {error!r}"))
            return
        self._give_back([answer for (_, future), answer in zip(batch, answers, strict=True) if future.cancelled()])
        for (_, future), answer in zip(batch, answers, strict=True):
            _resolve(future, answer, None)

    def _failed(self, batch: "_Entries[Item, Answer]", error: BaseException) -> None:
        if len(batch) > 1 and not isinstance(error, _ALL_FAIL):
            self._alone += batch
            return
        for _, future in batch:
            _resolve(future, None, error)

    def _give_back(self, answers: Sequence[Answer]) -> None:
        if answers or self._undo:
            self._undo = [task for task in self._undo if not task.done()]
            self._undo += [asyncio.ensure_future(self._unwanted(answer)) for answer in answers]
