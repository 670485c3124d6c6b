"""A real server for tests: uvicorn on a free port of loopback, in a thread of the test process, over any store.

One server serves many stores at once, each under a path of its own (`http://127.0.0.1:PORT/s/1`), so that a test costs
an open store and no start of a server. The store's clock may be the test's.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from leasekeeper import config
from leasekeeper.core.policy import Policy
from leasekeeper.core.tokens import ID_LENGTH, ApiToken
from leasekeeper.core.tokens import Scope as TokenScope
from leasekeeper.errors import NotAuthenticated
from leasekeeper.ports import Store
from leasekeeper.service.app import make_app
from leasekeeper.service.auth import Authenticator, create_token
from leasekeeper.service.serving import Address, serving
from leasekeeper.service.state import Service
from leasekeeper.stores import open_store

T = TypeVar("T")
START_SECONDS = 60


@dataclass(slots=True, kw_only=True)
class Served:
    """One store as it is served: its address, an admin token, and what is behind it in the server's thread."""

    url: str
    token: str = field(repr=False)
    service: Service
    close: Callable[[], None] = field(repr=False)
    run: Callable[[Coroutine[Any, Any, Any]], Any] = field(repr=False)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def store(self) -> Store:
        """The store itself. Only for `run`: its loop is the server's."""
        return self.service.store

    def new_token(self, *scopes: str, **settings: Any) -> str:
        """The text of a further token."""
        name = settings.pop("name", "test")
        made = create_token(self.store, name, [TokenScope(each) for each in scopes], actor="ann", **settings)
        text: str = self.run(made).text
        return text


class OneToken(Authenticator):
    """Knows one admin's token, and asks no store for it: what a test finds in its store is its own."""

    def __init__(self, store: Store, text: str) -> None:
        super().__init__(store)
        self._text = text

    async def identify(self, text: str) -> ApiToken:
        if text != self._text:
            raise NotAuthenticated("that is another token")
        at = datetime(2031, 1, 1, tzinfo=UTC)
        return ApiToken(
            token_id="t" * ID_LENGTH, name="tests", scopes=(TokenScope.ADMIN,), created_at=at, created_by="ann"
        )


class ServerThread:
    """The server. `serve` opens a store in its thread and mounts it."""

    def __init__(self) -> None:
        self._apps: dict[str, ASGIApp] = {}
        self._numbers = count(1)
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="test-server", daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._up.wait(START_SECONDS)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(START_SECONDS)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the server's loop, and wait for it."""
        return self.begin(work).result(START_SECONDS)

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Do something in the server's loop, however long it takes."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def serves(self, path: str) -> bool:
        """Whether a store is served under this path."""
        return path in self._apps

    def serve(
        self,
        store_url: str,
        *,
        policy: Policy | None = None,
        clock: Callable[[datetime], datetime] | None = None,
        path: str | None = None,
        token: str | None = None,
        sessions: int = 0,
        **settings: str | float,
    ) -> Served:
        """Serve the store at this URL until `close` of the answer is called.

        With `token`, that text is an admin's, and the store knows no token at all. With `sessions`, browsers too.
        """
        path = path or f"/s/{next(self._numbers)}"
        return self.run(self._serve(store_url, policy, clock, path, token, settings, sessions))

    async def _serve(
        self,
        store_url: str,
        policy: Policy | None,
        clock: Callable[[datetime], datetime] | None,
        path: str,
        token: str | None,
        settings: dict[str, str | float],
        sessions: int,
    ) -> Served:
        loaded = config.load({}, store=store_url, **settings)
        store = await open_store(store_url, policy=policy or loaded.policy, clock=clock or (lambda real: real))
        stack = AsyncExitStack()
        stack.push_async_callback(store.close)
        service = Service(store, loaded, auth=None if token is None else OneToken(store, token), sessions=sessions)
        await stack.enter_async_context(service.running())
        text = token or (await create_token(store, "tests", [TokenScope.ADMIN], actor="ann")).text
        assert path not in self._apps
        self._apps[path] = make_app(service)

        def close() -> None:
            if self._apps.pop(path, None) is not None:
                self.run(stack.aclose())

        return Served(url=self.url + path, token=text, service=service, close=close, run=self.run)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = "/".join(scope["path"].split("/")[:3])
        await self._apps[path]({**scope, "root_path": path}, receive, send)

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._until_over())
        self._loop.close()

    async def _until_over(self) -> None:
        async with serving(self._answer, Address(port=0)) as url:
            self.url = url
            self._up.set()
            await self._over.wait()


@contextmanager
def server_thread() -> Iterator[ServerThread]:
    thread = ServerThread()
    thread.start()
    yield thread
    thread.stop()
