"""An open browser as a run sees it, for both kinds of tasks: the async API in the worker's loop, the sync API in a
thread of its own. Everything that asks the browser has a time limit here: a driver that hangs must not hang the worker.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from leasekeeper.app import Run, SyncRun, Task
from leasekeeper.browsers.flushing import flush_cookies, flush_cookies_sync
from leasekeeper.core.detectors import Detector, PageFacts, selectors
from leasekeeper.evidence.capture import (
    Captured,
    capture,
    capture_sync,
    look,
    look_sync,
    read_environment,
    read_environment_sync,
)
from leasekeeper.evidence.recorder import Recorder
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant
from leasekeeper.runtime.desk import RunDesk, ThreadDesk
from leasekeeper.runtime.drivers import Driver, SyncDriver
from leasekeeper.runtime.offspring import Offspring, TaskLeft, begin

T = TypeVar("T")

ANSWER_SECONDS = 15.0
MOST_PAGES = 8
LAUNCH_SECONDS = 60.0


# What a task may set on a context that the next run would inherit. Cookies and storage are the profile's own.
_LASTING = (
    "add_init_script", "expose_binding", "expose_function", "grant_permissions", "on", "once", "route",
    "route_from_har", "route_web_socket", "set_default_navigation_timeout", "set_default_timeout",
    "set_extra_http_headers", "set_geolocation", "set_http_credentials", "set_offline",
    "clock.fast_forward", "clock.install", "clock.pause_at", "clock.resume", "clock.run_for", "clock.set_fixed_time",
    "clock.set_system_time", "credentials.create", "credentials.install", "debugger.request_pause", "tracing.group",
    "tracing.start", "tracing.start_chunk", "tracing.start_har",
)  # fmt: skip


def note_changes(context: Any) -> list[str]:
    """The answer grows by a name with every call that changes the context for good. `page.clock` is the context's."""
    made: list[str] = []

    def noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            made.append(name)
            return method(*arguments, **named)

        return call

    for name in _LASTING:
        *parts, last = name.split(".")
        owner = getattr(context, parts[0], None) if parts else context
        method = getattr(owner, last, None)
        if method is not None:
            setattr(owner, last, noting(name, method))
    return made


class Session(Protocol):
    """One open browser. `perform` runs the task; all else is for the runtime, before and after it."""

    recorder: Recorder

    async def open(self, launch: Mapping[str, Any]) -> None: ...

    def expect_next(self) -> None: ...

    async def fresh_page(self) -> None: ...

    def run(self, grant: Grant, task: Task, desk: RunDesk) -> "Run | SyncRun": ...

    async def perform(self, run: "Run | SyncRun", task: Task) -> object: ...

    @property
    def clean(self) -> bool: ...

    async def environment(self, timezone: str | None) -> dict[str, str]: ...

    async def look(self, detectors: Sequence[Detector]) -> list[PageFacts]: ...

    async def capture(self) -> Captured: ...

    async def flush(self) -> None: ...

    def url(self) -> str | None: ...

    async def visit(self, url: str) -> None: ...

    async def close(self) -> None: ...


class AsyncSession:
    """For `async def` tasks."""

    def __init__(self, driver: Driver, redactor: Redactor) -> None:
        self._driver = driver
        self._redactor = redactor
        self._context: Any = None
        self._page: Any = None
        self._spare: asyncio.Future[Any] | None = None
        self._changes: list[str] = []
        self._offspring: Offspring = Offspring()
        self.recorder = Recorder(redactor)

    async def open(self, launch: Mapping[str, Any]) -> None:
        async with asyncio.timeout(LAUNCH_SECONDS):
            playwright = await self._driver.get()
            self._context = await playwright.chromium.launch_persistent_context(**launch)
        self.recorder.attach(self._context)
        self._page = self._context.pages[0] if self._context.pages else await self._context.new_page()
        self._changes = note_changes(self._context)

    @property
    def clean(self) -> bool:
        """Whether the run left nothing in the browser or beside it that could reach into the next run."""
        return not self._changes and all(task.done() for task in self._offspring)

    def expect_next(self) -> None:
        """Another run will probably follow: its page is opened beside what is still to do for this one."""
        self._spare = asyncio.ensure_future(self._context.new_page())

    async def fresh_page(self) -> None:
        """A page that the run before has not touched, and no other; its recorder begins anew."""
        async with asyncio.timeout(ANSWER_SECONDS):
            self.recorder.detach()
            spare, self._spare = self._spare, None
            self._page = await (spare or self._context.new_page())
            await asyncio.gather(*(page.close() for page in self._context.pages if page is not self._page))
        self.recorder = Recorder(self._redactor)
        self.recorder.attach(self._context)
        self._changes.clear()

    def run(self, grant: Grant, task: Task, desk: RunDesk) -> Run:
        return Run(grant, task, desk, self._page, self._context)

    async def perform(self, run: "Run | SyncRun", task: Task) -> object:
        self._offspring = begin()
        try:
            return await task.function(run)
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            raise TaskLeft(f"the task ended with {type(error).__name__}({error})") from error
        except asyncio.CancelledError:
            # Only the runtime cancels a task from outside; one that cancels itself has failed.
            if (me := asyncio.current_task()) is not None and me.cancelling():
                raise
            raise TaskLeft("the task was cancelled by its own code") from None

    async def environment(self, timezone: str | None) -> dict[str, str]:
        pages = [page for page in (self._page, *self._context.pages) if not page.is_closed()]
        return await read_environment(pages[0], timezone, redactor=self._redactor) if pages else {}

    async def look(self, detectors: Sequence[Detector]) -> list[PageFacts]:
        wanted, texts = selectors(detectors), any(d.text for d in detectors)
        pages = [page for page in self._context.pages if not page.is_closed()][-MOST_PAGES:]
        return list(await asyncio.gather(*(look(page, wanted, with_text=texts) for page in pages)))

    async def capture(self) -> Captured:
        return await capture(self._context, recorder=self.recorder, redactor=self._redactor, page=self._page)

    async def flush(self) -> None:
        async with asyncio.timeout(ANSWER_SECONDS):
            await flush_cookies(self._context, self._page)

    def url(self) -> str | None:
        return str(self._page.url) if self._page is not None else None

    async def visit(self, url: str) -> None:
        """Go there, for a person; what does not load they will see."""
        with suppress(Exception):
            await self._page.goto(url)

    async def close(self) -> None:
        """Let Playwright clear up after a browser that has ended; one that has not is asked to."""
        if self._spare is not None:
            self._spare.cancel()
            await asyncio.gather(self._spare, return_exceptions=True)
        if self._context is not None:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._context.close()


class Host:
    """A thread with a Playwright driver of its own, for plain `def` tasks: the sync API allows no other."""

    def __init__(self, starter: Path | None) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.driver = SyncDriver(starter)
        self._thread = threading.Thread(target=self._main, name="leasekeeper-sync-task", daemon=True)
        self._thread.start()
        self.stuck = False

    async def call(self, work: Callable[[], T], seconds: float | None = None) -> T:
        """Do something in the thread. If it does not come back in time the host is stuck, and not used again."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def tell(result: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(result)

        def answer(result: Any, error: BaseException | None) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits there any more
                loop.call_soon_threadsafe(tell, result, error)

        def do() -> None:
            try:
                result = work()
            except (StopIteration, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError) as error:
                answer(None, TaskLeft(f"the task ended with {type(error).__name__}({error})"))
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked, whatever it is
                answer(None, error)
            else:
                answer(result, None)

        self._calls.put(do)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except (TimeoutError, asyncio.CancelledError):
            self.stuck = self.stuck or not future.done() or future.cancelled()
            raise

    def close(self) -> None:
        """End the thread and its driver, once what it does is done. A stuck one is left behind: it is a daemon."""
        self._calls.put(None)
        if not self.stuck:
            self._thread.join(ANSWER_SECONDS)

    def _main(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
        self.driver.stop()


class SyncSession:
    """For plain `def` tasks."""

    def __init__(self, host: Host, redactor: Redactor) -> None:
        self._host = host
        self._redactor = redactor
        self._loop = asyncio.get_running_loop()
        self._context: Any = None
        self._page: Any = None
        self._changes: list[str] = []
        self.recorder = Recorder(redactor)

    @property
    def host(self) -> Host:
        return self._host

    async def open(self, launch: Mapping[str, Any]) -> None:
        await self._host.call(lambda: self._open(launch), LAUNCH_SECONDS)

    def _open(self, launch: Mapping[str, Any]) -> None:
        self._context = self._host.driver.get().chromium.launch_persistent_context(**launch)
        self.recorder.attach(self._context)
        self._page = self._context.pages[0] if self._context.pages else self._context.new_page()
        self._changes = note_changes(self._context)

    @property
    def clean(self) -> bool:
        """Whether the run left nothing in the browser that could reach into the next run."""
        return not self._changes

    def expect_next(self) -> None:
        """Nothing: the thread has its hands full."""

    async def fresh_page(self) -> None:
        await self._host.call(self._fresh_page, ANSWER_SECONDS)

    def _fresh_page(self) -> None:
        self.recorder.detach()
        self._page = self._context.new_page()
        for page in self._context.pages:
            if page is not self._page:
                page.close()
        self.recorder = Recorder(self._redactor)
        self.recorder.attach(self._context)
        self._changes.clear()

    def run(self, grant: Grant, task: Task, desk: RunDesk) -> SyncRun:
        def flush() -> None:
            flush_cookies_sync(self._context, self._page)

        return SyncRun(grant, task, ThreadDesk(desk, self._loop, url=self.url, flush=flush), self._page, self._context)

    async def perform(self, run: "Run | SyncRun", task: Task) -> object:
        return await self._host.call(lambda: task.function(run))

    async def environment(self, timezone: str | None) -> dict[str, str]:
        return await self._ask(lambda: read_environment_sync(self._page, timezone, redactor=self._redactor), {})

    async def look(self, detectors: Sequence[Detector]) -> list[PageFacts]:
        wanted, texts = selectors(detectors), any(d.text for d in detectors)

        def look_at_all() -> list[PageFacts]:
            pages = [page for page in self._context.pages if not page.is_closed()][-MOST_PAGES:]
            return [look_sync(page, wanted, with_text=texts) for page in pages]

        return await self._ask(look_at_all, [])

    async def capture(self) -> Captured:
        return await self._ask(
            lambda: capture_sync(self._context, recorder=self.recorder, redactor=self._redactor, page=self._page),
            Captured(problem="the task's thread does not answer"),
        )

    async def flush(self) -> None:
        await self._host.call(lambda: flush_cookies_sync(self._context, self._page), ANSWER_SECONDS)

    def url(self) -> str | None:
        return str(self._page.url) if self._page is not None else None

    async def visit(self, url: str) -> None:
        await self._ask(lambda: self._page.goto(url), None)

    async def close(self) -> None:
        """The same, unless the task still has the thread."""
        if self._context is not None and not self._host.stuck:
            await self._host.call(self._context.close, ANSWER_SECONDS)

    async def _ask(self, work: Callable[[], T], otherwise: T) -> T:
        if self._host.stuck:
            return otherwise
        try:
            return await self._host.call(work, ANSWER_SECONDS)
        except TimeoutError:
            return otherwise
