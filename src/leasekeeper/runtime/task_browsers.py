"""An open browser as a run sees it, for both kinds of tasks: the async API in the worker's loop, the sync API in a
thread of its own. Every call to the browser has a timeout here: a Playwright process that hangs must not hang the
worker. A run without a browser has `no_browser`'s session.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import ref

from leasekeeper.app import Run, SyncRun, Task
from leasekeeper.browsers.cookie_flush import flush_cookies, flush_cookies_sync
from leasekeeper.core.canaries import Canary
from leasekeeper.core.detectors import Detector, PageFacts, selectors
from leasekeeper.evidence.capture import (
    Captured,
    capture,
    capture_sync,
    inspect_page,
    inspect_page_sync,
    read_environment,
    read_environment_sync,
)
from leasekeeper.evidence.recorder import Recorder
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant
from leasekeeper.runtime.canary import ask_async, ask_sync
from leasekeeper.runtime.child_tasks import ChildTasks, TaskLeft, begin
from leasekeeper.runtime.dialogs import Dialogs
from leasekeeper.runtime.kept_references import kept_reference
from leasekeeper.runtime.playwright_process import PlaywrightProcess, round_trip
from leasekeeper.runtime.run_api import RunApi, ThreadRunApi
from leasekeeper.runtime.task_threads import TaskThread

T = TypeVar("T")

ANSWER_SECONDS = 15.0
MAX_PAGES = 8
MAX_CLOSE_ROUNDS = 20
LAUNCH_SECONDS = 60.0
NEW_PAGES = "the site opens new pages faster than they close"

# Calls of a task that change a context or its browser for good: the next run would inherit the change. Cookies and
# storage do not count, they are the profile's own.
_LASTING = (
    "add_init_script", "expose_binding", "expose_function", "grant_permissions", "on", "once", "route",
    "route_from_har", "route_web_socket", "set_default_navigation_timeout", "set_default_timeout",
    "set_extra_http_headers", "set_geolocation", "set_http_credentials", "set_offline",
    "browser.bind", "browser.new_browser_cdp_session", "browser.new_context", "browser.new_page", "browser.on",
    "browser.once", "browser.start_tracing",
    "clock.fast_forward", "clock.install", "clock.pause_at", "clock.resume", "clock.run_for", "clock.set_fixed_time",
    "clock.set_system_time", "credentials.create", "credentials.install", "debugger.request_pause", "tracing.group",
    "tracing.start", "tracing.start_chunk", "tracing.start_har",
)  # fmt: skip


def record_changes(context: Any) -> list[str]:
    """Record the calls that change the context or its browser for good. Returns a list, to which each such call adds
    its name. `page.clock` counts: it is the context's."""
    made: list[str] = []

    def recording(name: str, owner: "ref[Any]", method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            made.append(name)
            return method(owner(), *arguments, **named)

        return call

    for name in _LASTING:
        *parts, last = name.split(".")
        owner = getattr(context, parts[0], None) if parts else context
        method = getattr(type(owner), last, None)
        if method is not None:
            # Nothing here may refer to the owner: see `kept_references`.
            setattr(owner, last, recording(name, ref(owner), method))
    return made


def _refuse_other_contexts(context: Any) -> None:
    """Raises OtherContexts unless this is the only context of its browser."""
    if context.browser is not None and (more := len(context.browser.contexts) - 1) > 0:
        raise OtherContexts(f"the browser has {more} more contexts than the profile's own")


def _still_referenced(context: Any, *own: object) -> str | None:
    """The sort of Playwright object of this context that something other than `own` still refers to; None if nothing
    does."""
    return kept_reference(context, [*own, *(vars(each) for each in own if hasattr(each, "__dict__"))])


def _launch_seconds(options: Mapping[str, Any]) -> float:
    """The time limit of a launch. It is longer than Playwright's own, so that Playwright gives up first, with a reason.
    A launcher may take longer than a browser of our own."""
    return max(LAUNCH_SECONDS, float(options.get("timeout", 0)) / 1000 + 10.0)


class OtherContexts(Exception):
    """Pages of other browser contexts are open: they would go on under the next run's lease."""


class Session(Protocol):
    """One open browser. `perform` runs the task; all else is for the runtime, before and after it."""

    recorder: Recorder

    async def open(self) -> None: ...

    @property
    def playwright_objects(self) -> tuple[Any, Any]: ...

    def expect_next(self) -> None: ...

    async def leave_pages(self) -> None: ...

    async def begin_recording_anew(self) -> None: ...

    def run(self, grant: Grant, task: Task, api: RunApi) -> "Run | SyncRun": ...

    async def perform(self, run: "Run | SyncRun", task: Task) -> object: ...

    async def page_again(self) -> None: ...

    @property
    def clean(self) -> bool: ...

    async def kept_reference(self) -> str | None: ...

    async def environment(self, timezone: str | None) -> dict[str, str]: ...

    async def text_at(self, url: str) -> str | None: ...

    async def inspect_page(self, detectors: Sequence[Detector]) -> list[PageFacts]: ...

    async def capture(self) -> Captured: ...

    async def ask(self, canary: Canary) -> bool | None: ...

    async def flush(self) -> None: ...

    async def leave_dialogs(self, *, to_others: bool) -> None: ...

    def url(self) -> str | None: ...

    async def goto(self, url: str) -> None: ...

    async def close(self) -> None: ...


async def perform_async(run: "Run | SyncRun", task: Task) -> object:
    """Run an `async def` task in the worker's loop. An exception that would end the program ends only the task."""
    try:
        return await task.function(run)
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        raise TaskLeft(f"the task ended with {type(error).__name__}({error})") from error
    except asyncio.CancelledError:
        # Only the runtime cancels a task from outside; one that cancels itself has failed.
        if (me := asyncio.current_task()) is not None and me.cancelling():
            raise
        raise TaskLeft("the task was cancelled by its own code") from None


class AsyncSession:
    """For `async def` tasks."""

    def __init__(self, options: Mapping[str, Any], process: PlaywrightProcess, redactor: Redactor) -> None:
        self._options = options
        self._playwright_process = process
        self._redactor = redactor
        self._context: Any = None
        self._page: Any = None
        self._spare: asyncio.Future[Any] | None = None
        self._dialogs: Dialogs | None = None
        self._changes: list[str] = []
        self._child_tasks: ChildTasks = ChildTasks()
        self.recorder = Recorder(redactor)

    async def open(self) -> None:
        async with asyncio.timeout(_launch_seconds(self._options)):
            playwright = await self._playwright_process.get(self)
            self._context = await playwright.chromium.launch_persistent_context(**self._options)
        self._dialogs = Dialogs(self._context, partial(round_trip, playwright))
        self.recorder.attach(self._context)
        self._page = self._context.pages[0] if self._context.pages else await self._context.new_page()
        self._changes = record_changes(self._context)

    @property
    def playwright_objects(self) -> tuple[Any, Any]:
        """The first page and the context."""
        return self._page, self._context

    @property
    def clean(self) -> bool:
        """Whether the run left nothing in the browser or beside it that could reach into the next run."""
        return not self._changes and self._child_tasks.left_running(asyncio.get_running_loop()) is None

    async def kept_reference(self) -> str | None:
        return _still_referenced(self._context, self, self.recorder, self._dialogs)

    def expect_next(self) -> None:
        """Another run will probably follow: its page is opened while this one's evidence is collected."""
        self._spare = asyncio.ensure_future(self._context.new_page())

    async def leave_pages(self) -> None:
        """Open a page that the run has not touched, and close all others, so that its handlers on pages cannot act any
        more. Raises TimeoutError or OtherContexts."""
        async with asyncio.timeout(ANSWER_SECONDS):
            spare, self._spare = self._spare, None
            self._page = await (spare or self._context.new_page())
            for _ in range(MAX_CLOSE_ROUNDS):
                others = [page for page in self._context.pages if page is not self._page]
                if not others:
                    return _refuse_other_contexts(self._context)
                await asyncio.gather(*(page.close() for page in others))
        raise TimeoutError(NEW_PAGES)

    async def begin_recording_anew(self) -> None:
        """From here on, record what the browser reports for the next run."""
        self.recorder.detach()
        self.recorder = Recorder(self._redactor)
        self.recorder.attach(self._context)
        self._changes.clear()

    async def page_again(self) -> None:
        """A task begins anew in the browser as a person left it: on the page that it had, if that is still open."""
        if self._page.is_closed():
            async with asyncio.timeout(ANSWER_SECONDS):
                pages = self._context.pages
                self._page = pages[-1] if pages else await self._context.new_page()

    def run(self, grant: Grant, task: Task, api: RunApi) -> Run:
        return Run(grant, task, api, self._page, self._context)

    async def perform(self, run: "Run | SyncRun", task: Task) -> object:
        self._child_tasks = begin()
        try:
            return await perform_async(run, task)
        finally:
            run.end()

    async def text_at(self, url: str) -> str | None:
        """The text of this address, read in a page of its own; None if it cannot be read."""
        with suppress(Exception):
            async with asyncio.timeout(ANSWER_SECONDS):
                page = await self._context.new_page()
                try:
                    await page.goto(url)
                    return (await inspect_page(page, ())).text
                finally:
                    await page.close()
        return None

    async def environment(self, timezone: str | None) -> dict[str, str]:
        pages = [page for page in (self._page, *self._context.pages) if not page.is_closed()]
        return await read_environment(pages[0], timezone, redactor=self._redactor) if pages else {}

    async def inspect_page(self, detectors: Sequence[Detector]) -> list[PageFacts]:
        wanted, texts = selectors(detectors), any(d.text for d in detectors)
        pages = [page for page in self._context.pages if not page.is_closed()][-MAX_PAGES:]
        return list(await asyncio.gather(*(inspect_page(page, wanted, with_text=texts) for page in pages)))

    async def capture(self) -> Captured:
        return await capture(self._context, recorder=self.recorder, redactor=self._redactor, page=self._page)

    async def ask(self, canary: Canary) -> bool | None:
        """Whether the profile is logged in; None if that could not be checked in time."""
        return await ask_async(self._context, canary)

    async def flush(self) -> None:
        async with asyncio.timeout(ANSWER_SECONDS):
            await flush_cookies(self._context, self._page)

    async def leave_dialogs(self, *, to_others: bool) -> None:
        """Set whether dialogs are answered by others than the program that uses `playwright_objects`."""
        if self._dialogs is not None:
            await self._dialogs.leave(to_others=to_others)

    def url(self) -> str | None:
        return str(self._page.url) if self._page is not None else None

    async def goto(self, url: str) -> None:
        """Open this address for a person. Errors are ignored: the person sees what does not load."""
        with suppress(Exception):
            await self._page.goto(url)

    async def close(self) -> None:
        """Close the context: Playwright clears up after a browser that has ended, and asks one that has not."""
        if self._spare is not None:
            self._spare.cancel()
            await asyncio.gather(self._spare, return_exceptions=True)
        if self._context is not None:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._context.close()


class SyncSession:
    """For plain `def` tasks."""

    def __init__(self, options: Mapping[str, Any], thread: TaskThread, redactor: Redactor) -> None:
        self._options = options
        self.thread = thread
        self._redactor = redactor
        self._loop = asyncio.get_running_loop()
        self._context: Any = None
        self._page: Any = None
        self._changes: list[str] = []
        self._child_tasks: ChildTasks = ChildTasks()
        self.recorder = Recorder(redactor)

    async def open(self) -> None:
        await self.thread.call(self._open, _launch_seconds(self._options))

    def _open(self) -> None:
        self._context = self.thread.playwright.get().chromium.launch_persistent_context(**self._options)
        self.recorder.attach(self._context)
        self._page = self._context.pages[0] if self._context.pages else self._context.new_page()
        self._changes = record_changes(self._context)

    @property
    def playwright_objects(self) -> tuple[Any, Any]:
        """The first page and the context."""
        return self._page, self._context

    @property
    def clean(self) -> bool:
        """Whether the run left nothing in the browser or beside it that could reach into the next run."""
        return not self._changes and self._child_tasks.thread_left() is None

    async def kept_reference(self) -> str | None:
        return _still_referenced(self._context, self, self.recorder)

    def expect_next(self) -> None:
        """Nothing: the thread is busy with the task."""

    async def leave_pages(self) -> None:
        await self.thread.call(self._leave_pages, ANSWER_SECONDS)

    def _leave_pages(self) -> None:
        self._page = self._context.new_page()
        for _ in range(MAX_CLOSE_ROUNDS):
            others = [page for page in self._context.pages if page is not self._page]
            if not others:
                return _refuse_other_contexts(self._context)
            for page in others:
                page.close()
        raise TimeoutError(NEW_PAGES)

    async def begin_recording_anew(self) -> None:
        await self.thread.call(self._record_anew, ANSWER_SECONDS)

    def _record_anew(self) -> None:
        self.recorder.detach()
        self.recorder = Recorder(self._redactor)
        self.recorder.attach(self._context)
        self._changes.clear()

    async def page_again(self) -> None:
        """Nothing: a plain `def` task that was stopped has its thread still, and does not begin anew."""

    def run(self, grant: Grant, task: Task, api: RunApi) -> SyncRun:
        def flush() -> None:
            flush_cookies_sync(self._context, self._page)

        return SyncRun(grant, task, ThreadRunApi(api, self._loop, url=self.url, flush=flush), self._page, self._context)

    async def perform(self, run: "Run | SyncRun", task: Task) -> object:
        self._child_tasks = ChildTasks()

        def perform() -> object:
            try:
                return task.function(run)
            finally:
                run.end()

        return await self.thread.call(perform)

    async def text_at(self, url: str) -> str | None:
        def read() -> str | None:
            page = self._context.new_page()
            try:
                page.goto(url)
                return inspect_page_sync(page, ()).text
            finally:
                page.close()

        with suppress(Exception):
            return await self._ask(read, None)
        return None

    async def environment(self, timezone: str | None) -> dict[str, str]:
        return await self._ask(lambda: read_environment_sync(self._page, timezone, redactor=self._redactor), {})

    async def inspect_page(self, detectors: Sequence[Detector]) -> list[PageFacts]:
        wanted, texts = selectors(detectors), any(d.text for d in detectors)

        def inspect_all() -> list[PageFacts]:
            pages = [page for page in self._context.pages if not page.is_closed()][-MAX_PAGES:]
            return [inspect_page_sync(page, wanted, with_text=texts) for page in pages]

        return await self._ask(inspect_all, [])

    async def capture(self) -> Captured:
        return await self._ask(
            lambda: capture_sync(self._context, recorder=self.recorder, redactor=self._redactor, page=self._page),
            Captured(problem="the task's thread does not answer"),
        )

    async def ask(self, canary: Canary) -> bool | None:
        return await self._ask(lambda: ask_sync(self._context, canary), None)

    async def flush(self) -> None:
        await self.thread.call(lambda: flush_cookies_sync(self._context, self._page), ANSWER_SECONDS)

    async def leave_dialogs(self, *, to_others: bool) -> None:
        """Nothing: others act only while the task's thread is busy and what it sends is paused."""

    def url(self) -> str | None:
        return str(self._page.url) if self._page is not None else None

    async def goto(self, url: str) -> None:
        await self._ask(lambda: self._page.goto(url), None)

    async def close(self) -> None:
        """Close the context, unless the task still blocks the thread."""
        if self._context is not None and not self.thread.stuck:
            await self.thread.call(self._context.close, ANSWER_SECONDS)

    async def _ask(self, work: Callable[[], T], otherwise: T) -> T:
        if self.thread.stuck:
            return otherwise
        try:
            return await self.thread.call(work, ANSWER_SECONDS)
        except TimeoutError:
            return otherwise
