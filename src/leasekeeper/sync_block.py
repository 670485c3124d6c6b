"""The base of plain `with` blocks: the async client and what it leased, in a thread with an event loop of its own.

Knows no rules: every guarantee is the async client's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from leasekeeper.client import Client, connect
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.errors import Conflict
from leasekeeper.threads import LoopThread

H = TypeVar("H", bound=AbstractAsyncContextManager[Any])


class SyncBlock(ABC, Generic[H]):
    """One block, used once. `_held` is what the client leased; `_loop_thread` is where its coroutines run."""

    _function: ClassVar[str]

    def __init__(
        self, profile: str | None, options: Mapping[str, Any], store: str | None, settings: Mapping[str, str | float]
    ) -> None:
        self._profile = profile
        self._options = options
        self._store = store
        self._settings = settings
        self._thread: LoopThread | None = None
        self._client = AsyncExitStack()
        self._leased: H | None = None
        self._over = False

    @abstractmethod
    def _lease_by(self, client: Client) -> H:
        """Create what the block leases, without entering it."""

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise self._not_held(f"this {self._function} was used already: call leasekeeper.{self._function} again")
        self._thread = LoopThread()
        try:
            self._thread.call(self._open())
        except BaseException as error:
            if self._leased is not None:  # interrupted after the lease was granted
                with suppress(Exception):
                    self.__exit__(type(error), error, error.__traceback__)
            else:
                self._thread.close()
                self._thread = None
            raise
        return self

    async def _open(self) -> None:
        async with AsyncExitStack() as opening:
            client = await opening.enter_async_context(connect(self._store, **self._settings))
            leased = self._lease_by(client)
            await leased.__aenter__()
            self._leased, self._client = leased, opening.pop_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread = self._loop_thread
        try:
            thread.call(self._close(kind, error, trace), uncancelled=True)
        finally:
            self._over = True
            thread.close()

    async def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._held.__aexit__(kind, error, trace)
        finally:
            await self._client.aclose()

    @property
    def _held(self) -> H:
        if self._leased is None:
            raise self._not_held(f"profile {self._profile} is not leased yet: use 'with'")
        return self._leased

    @property
    def _loop_thread(self) -> LoopThread:
        if self._thread is None or self._over:
            raise self._not_held(f"profile {self._profile} is leased inside the 'with' block only")
        return self._thread

    def _not_held(self, message: str) -> Conflict:
        return Conflict(message, cause=ConflictReason.LEASE_NOT_HELD, profile_id=self._profile)
