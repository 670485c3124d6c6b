"""What a user's file imports: App, its tasks, and Run, the one argument of a task.

    app = App()

    @app.task("sync_orders", actions=["read_dashboard", "export_orders"])
    async def sync_orders(run: Run) -> dict:
        await run.page.goto(run.payload["shop_url"])
        await run.safe("dashboard_open")
        async with run.mutating("export_orders"):
            await run.page.click("#export")
        return {"orders": await run.page.locator(".order").count()}

A plain `def` task gets a SyncRun instead: the same names, Playwright's sync API, a thread of its own. Nothing here
starts anything: `leasekeeper up tasks:app` and `leasekeeper worker tasks:app` do.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from leasekeeper.core.canaries import Canary, CanaryFunction, as_canary
from leasekeeper.core.detectors import Detector
from leasekeeper.core.failures import FAILURES, BelongsTo, Failure, ProfileRule, Reason, RetryRule
from leasekeeper.core.ids import is_id
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, Mode
from leasekeeper.core.notes import NoteAbout
from leasekeeper.errors import Fail, InputError, LeaseLost, Problem
from leasekeeper.ports import Grant

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page
    from playwright.sync_api import BrowserContext as SyncBrowserContext
    from playwright.sync_api import Page as SyncPage

Function = TypeVar("Function", bound=Callable[..., Any])
Retry = bool | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A registered function and its options. See App.task for what each option means."""

    name: str
    function: Callable[..., Any]
    sync: bool = False
    actions: tuple[str, ...] | None = None
    timeout: timedelta | None = None
    retry: Retry = False
    mode: Mode | None = None
    warm: bool = True
    detectors: tuple[Detector, ...] = ()
    canary: Canary | None = None
    resumable: bool = False
    record: bool = False

    def retries(self, error: BaseException) -> bool:
        """Whether the task says that this error of its own may be tried again."""
        return isinstance(error, self.retry) if isinstance(self.retry, tuple) else self.retry


class App:
    """The tasks of one project, its own failure reasons and detectors, and where its store is.

    Settings are those of `leasekeeper.config`; what is given here wins over the environment.
    """

    def __init__(self, store: str | None = None, **settings: str | float) -> None:
        self.settings: dict[str, str | float] = dict(settings)
        if store is not None:
            self.settings["store"] = store
        self.tasks: dict[str, Task] = {}
        self.reasons: dict[str, Failure] = {}
        self.detectors: list[Detector] = []
        self.login_canary: Canary | None = None

    @overload
    def task(self, name: Function, /) -> Function: ...

    @overload
    def task(
        self,
        name: str | None = None,
        *,
        actions: Sequence[str] | None = None,
        timeout: float | timedelta | None = None,
        retry: Retry = False,
        mode: Mode | str | None = None,
        warm: bool = True,
        detectors: Sequence[Detector] = (),
        canary: Canary | CanaryFunction | None = None,
        resumable: bool = False,
        record: bool = False,
    ) -> Callable[[Function], Function]: ...

    def task(
        self,
        name: str | Function | None = None,
        *,
        actions: Sequence[str] | None = None,
        timeout: float | timedelta | None = None,
        retry: Retry = False,
        mode: Mode | str | None = None,
        warm: bool = True,
        detectors: Sequence[Detector] = (),
        canary: Canary | CanaryFunction | None = None,
        resumable: bool = False,
        record: bool = False,
    ) -> Function | Callable[[Function], Function]:
        """Register a function as a task, under this name or its own.

        actions    what it does, by name; `run.action` and `run.mutating` refuse other names
        timeout    seconds it may take before it is stopped with TIMEOUT (default: the setting `task_timeout`)
        retry      True, or the exceptions of its own that may be tried again (default: a TASK_ERROR is not)
        mode       "shared" for a task that only reads: no mutating sections; "exclusive" refuses jobs that were
                   submitted as shared
        warm       False: never start in a browser that the run before left open, and never leave one
        detectors which page content ends a run with which reason, for this task; the app's detectors apply too
        canary how to check at the end of a run whether the profile is still logged in: see `App.canary`
        resumable  True: when a person has taken its browser and hands it back, an `async def` task starts again in it
        record     True: keep a recording of each run with its evidence; a profile may say so too
        """

        called = None if callable(name) else name

        def register(function: Function) -> Function:
            task_name = called or str(getattr(function, "__name__", ""))
            self._check(task_name, timeout, actions, mode)
            self.tasks[task_name] = Task(
                name=task_name,
                function=function,
                sync=not inspect.iscoroutinefunction(function),
                actions=None if actions is None else tuple(actions),
                timeout=timeout if timeout is None or isinstance(timeout, timedelta) else timedelta(seconds=timeout),
                retry=retry,
                mode=None if mode is None else Mode(mode),
                warm=warm,
                detectors=tuple(detectors),
                canary=as_canary(canary),
                resumable=resumable,
                record=record,
            )
            return function

        return register(name) if callable(name) else register  # @app.task, or @app.task(...)

    def _check(
        self, name: str, timeout: float | timedelta | None, actions: Sequence[str] | None, mode: Mode | str | None
    ) -> None:
        problems = []
        if not is_id(name):
            problems.append(Problem("name", f"{name!r} is not a task name: letters, digits, '.', '_' and '-'"))
        if name in self.tasks:
            problems.append(Problem("name", f"there is a task {name!r} already"))
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if seconds is not None and seconds <= 0:
            problems.append(Problem("timeout", "must be more than 0 seconds"))
        if mode is not None and mode not in list(Mode):
            problems.append(Problem("mode", f"one of: {', '.join(Mode)}"))
        if isinstance(actions, str):
            problems.append(Problem("actions", "must be a list of names"))
        if problems:
            raise InputError("the task was not registered", problems)

    def reason(
        self,
        name: str,
        *,
        belongs_to: BelongsTo | str = BelongsTo.WORKFLOW,
        retry: bool = False,
        profile: ProfileRule | str = ProfileRule.AVAILABLE,
    ) -> str:
        """Register a failure reason of the project's own. It cannot replace one that Leasekeeper has."""
        if name in FAILURES:
            raise InputError("the reason was not registered", [Problem("name", f"{name} is a reason of Leasekeeper")])
        if not is_id(name):
            raise InputError("the reason was not registered", [Problem("name", f"{name!r} is not a name")])
        allowed = (ProfileRule.AVAILABLE, ProfileRule.REVIEW_REQUIRED, ProfileRule.QUARANTINED)
        if profile not in allowed:
            raise InputError("the reason was not registered", [Problem("profile", f"one of: {', '.join(allowed)}")])
        rule = RetryRule.YES if retry else RetryRule.NO
        self.reasons[name] = Failure(name, BelongsTo(belongs_to), rule, ProfileRule(profile))
        return name

    def detector(
        self, reason: str, *, url: str | None = None, selector: str | None = None, text: str | None = None
    ) -> Detector:
        """End a run for this reason when a page matches: its URL, a selector, a text. All that are given must match."""
        found = Detector(reason=reason, url=url, selector=selector, text=text)
        self.detectors.append(found)
        return found

    def canary(self, asked: Canary | CanaryFunction) -> Canary | CanaryFunction:
        """Say how to check whether a profile is still logged in, for every task that has no canary of its own.

        `app.canary(Canary(url=…, selector=…))`; or, as a decorator, a function that gets a page of the profile's
        browser and returns True or False. It is called at the end of a run, before the browser is closed.
        """
        self.login_canary = as_canary(asked)
        return asked


Content = bytes | str | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanAnswer:
    """A person's answer to `request_human`: who answered, a note, and a word of their choice (`outcome`)."""

    by: str
    note: str = ""
    outcome: str = ""


class RunBackend(Protocol):
    """What the runtime does for a run. Everything that writes is fenced by the run's lease."""

    @property
    def stopping(self) -> bool: ...

    def check(self) -> None: ...

    async def checkpoint(self, step: str, *, flush: bool) -> None: ...

    async def enter(self, name: str, *, idempotent: bool) -> None: ...

    async def leave(self, name: str) -> None: ...

    async def attach(self, name: str, content: Content) -> None: ...

    async def note(self, text: str, about: NoteAbout) -> None: ...

    async def secret(self, reference: str) -> str: ...

    async def request_human(self, what: str, timeout: timedelta) -> HumanAnswer: ...


@dataclass(frozen=True, slots=True)
class Signal:
    """A reason that the task reported. The run ends with it, whatever else happens."""

    reason: str
    message: str = ""


AnyBackend = TypeVar("AnyBackend")
HUMAN_TIMEOUT = timedelta(hours=1)


def _span(timeout: float | timedelta) -> timedelta:
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)


class _Base(Generic[AnyBackend]):
    """What both kinds of Run have: the job, its lease, and what it may do."""

    def __init__(self, grant: Grant, task: Task, api: AnyBackend) -> None:
        if grant.job is None:
            raise ValueError("a run of a task needs a job")
        self._grant = grant
        self._task = task
        self._api = api
        self.job: Job = grant.job
        self.log = logging.getLogger(f"leasekeeper.task.{task.name}")
        self.signals: list[Signal] = []

    def continue_under(self, grant: Grant) -> None:
        """A person had the browser and handed it back: the task goes on under another lease."""
        self._grant = grant

    @property
    def payload(self) -> Mapping[str, Any]:
        """The job's payload."""
        return self.job.payload

    @property
    def lease(self) -> Lease:
        """The lease as it was granted: profile, token, run id. Another one once a person handed the browser back."""
        return self._grant.lease

    @property
    def profile_id(self) -> str:
        return self.lease.profile_id

    @property
    def account_id(self) -> str:
        return self.lease.account_id

    def action(self, name: str) -> None:
        """Declare an action before doing it. The run stops if the job does not allow it."""
        allowed = self.job.allowed_actions
        if allowed is not None and name not in allowed:
            self._refuse(f"{name} is not among the job's allowed actions ({', '.join(allowed) or 'none'})")
        if self._task.actions is not None and name not in self._task.actions:
            self._refuse(f"{name} is not an action of task {self._task.name} ({', '.join(self._task.actions)})")

    def _refuse(self, message: str) -> None:
        self.signal(Reason.ACTION_NOT_ALLOWED, message)
        raise Fail(Reason.ACTION_NOT_ALLOWED, message)

    def signal(self, reason: str, message: str = "") -> None:
        """Report a reason without stopping: the run ends with it, even if the task returns normally."""
        self.signals.append(Signal(reason, message))

    def _enter(self, name: str) -> None:
        self.action(name)
        if self._task.mode is Mode.SHARED:
            self._refuse(f"task {self._task.name} is shared: it must not change anything ({name})")


class RunOver:
    """Replaces `run.page` and `run.context` after the task has ended: the browser may belong to another run by then."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def __getattr__(self, name: str) -> Any:
        raise LeaseLost(f"run {self._run_id} is over: its page and its context cannot be used any more")

    def __repr__(self) -> str:
        return "<run over>"


class Run(_Base[RunBackend]):
    """One run of a task: the page in the leased profile, and what the task says about its progress."""

    def __init__(self, grant: Grant, task: Task, api: RunBackend, page: "Page", context: "BrowserContext") -> None:
        super().__init__(grant, task, api)
        self.page = page
        self.context = context

    def end(self) -> None:
        """The task has ended: code that kept this run cannot reach the browser through it."""
        over: Any = RunOver(self.lease.run_id)
        self.page = self.context = over

    @property
    def stopping(self) -> bool:
        """Whether the worker was asked to stop: a long task may end at its next safe step by itself."""
        return self._api.stopping

    async def safe(self, step: str, *, flush: bool = False) -> None:
        """Record the last safe step: from here another run could start over without harm.

        With `flush`, the browser's cookies are made durable first. A worker that was asked to stop ends the run here.
        """
        self._api.check()
        await self._api.checkpoint(step, flush=flush)

    @asynccontextmanager
    async def mutating(self, name: str, *, idempotent: bool = False) -> AsyncIterator[None]:
        """A section that changes something for good. A worker that dies inside it leaves the profile quarantined.

        It is left only if the block ends normally: after an exception nobody knows what was submitted. A run that fails
        inside it, or after it and before the next safe step, goes to review instead of a retry. `idempotent=True` says
        that doing it twice does no harm, and allows the retry.
        """
        self._enter(name)
        self._api.check()
        await self._api.enter(name, idempotent=idempotent)
        yield
        await self._api.leave(name)

    async def attach(self, name: str, content: Content) -> None:
        """Keep a file with the run's evidence: bytes, text, or the path of a file."""
        self._api.check()
        await self._api.attach(name, content)

    async def note(self, text: str, *, about: NoteAbout | str = NoteAbout.PROFILE) -> None:
        """Write a note on the profile, or with `about="account"` on the account: for the people who are responsible for
        it.

        It is in `leasekeeper notes`, in `why` and in reviews. The same text twice in one run is kept once.
        """
        self._api.check()
        await self._api.note(text, NoteAbout(about))

    async def secret(self, reference: str) -> str:
        """The value of a stored secret that the payload names: `await run.secret(run.payload["password"])`, where the
        payload has `secret:job-NAME`. From then on it is redacted in evidence, errors and notes.
        """
        self._api.check()
        return await self._api.secret(reference)

    async def request_human(self, what: str, *, timeout: float | timedelta = HUMAN_TIMEOUT) -> HumanAnswer:
        """Ask for a person, and wait: this run appears in the review inbox, with a link to its live view.

        A person may just answer, or take control: then no command of this task reaches the browser until they hand it
        back, and the task continues under a new lease. A person who releases the browser instead ends the run.
        `timeout` is how long to wait for a person; after it the run ends with HUMAN_REVIEW_REQUIRED.
        """
        self._api.check()
        return await self._api.request_human(what, _span(timeout))


class SyncRunBackend(Protocol):
    """RunBackend for a plain `def` task, called in its thread."""

    @property
    def stopping(self) -> bool: ...

    def check(self) -> None: ...

    def checkpoint(self, step: str, *, flush: bool) -> None: ...

    def enter(self, name: str, *, idempotent: bool) -> None: ...

    def leave(self, name: str) -> None: ...

    def attach(self, name: str, content: Content) -> None: ...

    def note(self, text: str, about: NoteAbout) -> None: ...

    def secret(self, reference: str) -> str: ...

    def request_human(self, what: str, timeout: timedelta) -> HumanAnswer: ...


class SyncRun(_Base[SyncRunBackend]):
    """Run for a plain `def` task, with Playwright's sync API."""

    def __init__(
        self, grant: Grant, task: Task, api: SyncRunBackend, page: "SyncPage", context: "SyncBrowserContext"
    ) -> None:
        super().__init__(grant, task, api)
        self.page = page
        self.context = context

    def end(self) -> None:
        """The task has ended: code that kept this run cannot reach the browser through it."""
        over: Any = RunOver(self.lease.run_id)
        self.page = self.context = over

    @property
    def stopping(self) -> bool:
        """Whether the worker was asked to stop."""
        return self._api.stopping

    def safe(self, step: str, *, flush: bool = False) -> None:
        """Record the last safe step. See Run.safe."""
        self._api.check()
        self._api.checkpoint(step, flush=flush)

    @contextmanager
    def mutating(self, name: str, *, idempotent: bool = False) -> Iterator[None]:
        """A section that changes something for good. See Run.mutating."""
        self._enter(name)
        self._api.check()
        self._api.enter(name, idempotent=idempotent)
        yield
        self._api.leave(name)

    def attach(self, name: str, content: Content) -> None:
        """Keep a file with the run's evidence. See Run.attach."""
        self._api.check()
        self._api.attach(name, content)

    def note(self, text: str, *, about: NoteAbout | str = NoteAbout.PROFILE) -> None:
        """Write a note on the profile or the account. See Run.note."""
        self._api.check()
        self._api.note(text, NoteAbout(about))

    def secret(self, reference: str) -> str:
        """The value of a stored secret that the payload names. See Run.secret."""
        self._api.check()
        return self._api.secret(reference)

    def request_human(self, what: str, *, timeout: float | timedelta = HUMAN_TIMEOUT) -> HumanAnswer:
        """Ask for a person, and wait. See Run.request_human."""
        self._api.check()
        return self._api.request_human(what, _span(timeout))
