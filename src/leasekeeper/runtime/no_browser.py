"""The session of a run without a browser: its task runs as any other, in the loop or in a thread, and has no page."""

import asyncio
from collections.abc import Sequence
from typing import Any

from leasekeeper.app import Run, SyncRun, Task
from leasekeeper.core.browsers import NoPage
from leasekeeper.core.canaries import Canary
from leasekeeper.core.detectors import Detector, PageFacts
from leasekeeper.errors import InputError
from leasekeeper.evidence.capture import Captured
from leasekeeper.evidence.recorder import Recorder
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant
from leasekeeper.runtime.child_tasks import ChildTasks, begin
from leasekeeper.runtime.run_api import RunApi, ThreadRunApi
from leasekeeper.runtime.task_browsers import perform_async
from leasekeeper.runtime.task_threads import TaskThread

NOWHERE = "about:blank"


class NoPageHere:
    """Takes the place of `run.page` and `run.context`. Every use of an attribute raises InputError, which says why."""

    def __init__(self, message: str) -> None:
        self._message = message

    def __getattr__(self, name: str) -> Any:
        raise InputError(self._message)

    def __repr__(self) -> str:
        return "<no page>"


class NoBrowserSession:
    """Implements `task_browsers.Session`. `thread` is for plain `def` tasks; None for `async def` tasks."""

    def __init__(self, endpoint: NoPage, thread: TaskThread | None, redactor: Redactor) -> None:
        self._page: Any = NoPageHere(endpoint.message)
        self.thread = thread
        self._loop = asyncio.get_running_loop()
        self._child_tasks: ChildTasks | None = None
        self.recorder = Recorder(redactor)

    async def open(self) -> None:
        """Nothing to open."""

    @property
    def playwright_objects(self) -> tuple[Any, Any]:
        """Objects that raise an error when they are used, in place of a page and a context."""
        return self._page, self._page

    @property
    def clean(self) -> bool:
        """Whether the run left nothing behind that could reach into the next run."""
        return self._child_tasks is None or self._child_tasks.left_running(self._loop) is None

    async def kept_reference(self) -> str | None:
        """None: there is nothing to keep."""
        return None

    def expect_next(self) -> None:
        """Nothing to prepare."""

    async def leave_pages(self) -> None:
        """There are none."""

    async def begin_recording_anew(self) -> None:
        """Nothing is recorded."""

    async def page_again(self) -> None:
        """There is none."""

    def run(self, grant: Grant, task: Task, api: RunApi) -> "Run | SyncRun":
        if self.thread is None:
            return Run(grant, task, api, self._page, self._page)
        in_thread = ThreadRunApi(api, self._loop, url=self.url, flush=lambda: None)
        return SyncRun(grant, task, in_thread, self._page, self._page)

    async def perform(self, run: "Run | SyncRun", task: Task) -> object:
        if self.thread is not None:
            return await self.thread.call(lambda: task.function(run))
        self._child_tasks = begin()
        return await perform_async(run, task)

    async def text_at(self, url: str) -> str | None:  # noqa: ARG002 - no page reads any
        return None

    async def environment(self, timezone: str | None) -> dict[str, str]:  # noqa: ARG002 - no page sees any
        return {}

    async def inspect_page(self, detectors: Sequence[Detector]) -> list[PageFacts]:  # noqa: ARG002 - no page
        return []

    async def capture(self) -> Captured:
        return Captured(final_url=NOWHERE)

    async def ask(self, canary: Canary) -> bool | None:  # noqa: ARG002 - no page shows it
        return None

    async def flush(self) -> None:
        """Nothing to flush."""

    async def leave_dialogs(self, *, to_others: bool) -> None:
        """There are none."""

    def url(self) -> str | None:
        return NOWHERE

    async def goto(self, url: str) -> None:
        """Nowhere to go."""

    async def close(self) -> None:
        """Nothing to close."""
