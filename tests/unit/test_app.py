"""App and Run: what is registered, what is refused, and what a run may say about itself."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from leasekeeper.app import App, HumanAnswer, Run, Signal, SyncRun
from leasekeeper.core.failures import ProfileRule, RetryRule
from leasekeeper.core.leases import Mode
from leasekeeper.core.notes import NoteAbout
from leasekeeper.errors import Fail, InputError
from leasekeeper.ports import Grant
from tests.unit.records import a_grant


def test_a_task_is_registered_with_and_without_brackets() -> None:
    app = App()

    @app.task
    async def bare(run: Run) -> None: ...

    @app.task()
    async def empty(run: Run) -> None: ...

    @app.task("other", warm=False)
    def named(run: SyncRun) -> None: ...

    assert [(task.name, task.function, task.sync) for task in app.tasks.values()] == [
        ("bare", bare, False),
        ("empty", empty, False),
        ("other", named, True),
    ]


class FakeBackend:
    """A backend that records what it was asked for."""

    stopping = False

    def __init__(self) -> None:
        self.said: list[str] = []

    def check(self) -> None:
        self.said.append("check")

    async def checkpoint(self, step: str, *, flush: bool) -> None:
        self.said.append(f"safe {step} {flush}")

    async def enter(self, name: str, *, idempotent: bool) -> None:
        self.said.append(f"enter {name}{' again' * idempotent}")

    async def leave(self, name: str) -> None:
        self.said.append(f"leave {name}")

    async def attach(self, name: str, content: Any) -> None:
        self.said.append(f"attach {name} {content!r}")

    async def note(self, text: str, about: NoteAbout) -> None:
        self.said.append(f"note {about} {text}")

    async def secret(self, reference: str) -> str:
        self.said.append(f"secret {reference}")
        return "hunter2"

    async def request_human(self, what: str, timeout: timedelta) -> HumanAnswer:
        self.said.append(f"ask {what} for {timeout.total_seconds():g} s")
        return HumanAnswer(by="ann", outcome="solved")


class PlainBackend:
    """The same for a plain task."""

    stopping = True

    def __init__(self) -> None:
        self.said: list[str] = []

    def check(self) -> None:
        self.said.append("check")

    def checkpoint(self, step: str, *, flush: bool) -> None:
        self.said.append(f"safe {step} {flush}")

    def enter(self, name: str, *, idempotent: bool) -> None:
        self.said.append(f"enter {name}{' again' * idempotent}")

    def leave(self, name: str) -> None:
        self.said.append(f"leave {name}")

    def attach(self, name: str, content: Any) -> None:
        self.said.append(f"attach {name} {content!r}")

    def note(self, text: str, about: NoteAbout) -> None:
        self.said.append(f"note {about} {text}")

    def secret(self, reference: str) -> str:
        self.said.append(f"secret {reference}")
        return "hunter2"

    def request_human(self, what: str, timeout: timedelta) -> HumanAnswer:
        self.said.append(f"ask {what} for {timeout.total_seconds():g} s")
        return HumanAnswer(by="ann", outcome="solved")


async def nothing(run: Run) -> None:
    """A task that does nothing."""


def an_app(**options: Any) -> App:
    app = App()

    @app.task("sync", **options)
    async def sync(run: Run) -> None: ...

    return app


def a_run(api: FakeBackend, *, allowed: tuple[str, ...] | None = None, **options: Any) -> Run:
    grant = a_grant()
    assert grant.job is not None
    granted: Grant = replace(grant, job=replace(grant.job, allowed_actions=allowed))
    page: Any = object()
    return Run(granted, an_app(**options).tasks["sync"], api, page, page)


def test_a_task_is_known_by_its_name_and_kind() -> None:
    app = App()

    @app.task()
    def plain(run: SyncRun) -> None: ...

    @app.task("other", timeout=2, mode="shared", retry=(KeyError,))
    async def other(run: Run) -> None: ...

    assert (app.tasks["plain"].sync, app.tasks["other"].sync) == (True, False)
    assert app.tasks["other"].timeout == timedelta(seconds=2)
    assert app.tasks["other"].mode is Mode.SHARED
    assert app.tasks["other"].retries(KeyError("x"))
    assert not app.tasks["other"].retries(ValueError("x"))
    assert not app.tasks["plain"].retries(KeyError("x"))


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"name": "no good"}, "name"),
        ({"name": "../up"}, "name"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": timedelta(seconds=-1)}, "timeout"),
        ({"actions": "click"}, "actions"),
        ({"mode": "sometimes"}, "mode"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused_when_it_is_registered(options: dict[str, Any], where: str) -> None:
    app = App()
    with pytest.raises(InputError, match="the task was not registered") as refused:
        app.task(**options)(nothing)
    assert [problem.where for problem in refused.value.problems] == [where]
    assert app.tasks == {}


def test_two_tasks_of_one_name_are_refused() -> None:
    app = an_app()
    with pytest.raises(InputError, match="there is a task 'sync' already"):
        app.task("sync")(nothing)


def test_reasons_of_a_project() -> None:
    app = App()
    assert app.reason("OUT_OF_STOCK", retry=True) == "OUT_OF_STOCK"
    row = app.reasons["OUT_OF_STOCK"]
    assert (row.retry, row.profile) == (RetryRule.YES, ProfileRule.AVAILABLE)
    with pytest.raises(InputError, match="is a reason of Leasekeeper"):
        app.reason("TIMEOUT")
    with pytest.raises(InputError, match="one of: available, review_required, quarantined"):
        app.reason("ODD", profile="stale")
    with pytest.raises(InputError, match="is not a name"):
        app.reason("no good")


def test_a_detector_must_search_for_something() -> None:
    app = App()
    app.detector("LOGIN_REQUIRED", selector="#login")
    with pytest.raises(InputError):
        app.detector("LOGIN_REQUIRED")
    assert len(app.detectors) == 1


async def test_what_a_run_says_goes_to_its_backend_after_a_check_of_the_lease() -> None:
    api = FakeBackend()
    run = a_run(api)
    await run.safe("open", flush=True)
    async with run.mutating("pay"):
        api.said.append("inside")
    await run.attach("a.txt", "text")
    assert api.said == [
        "check", "safe open True", "check", "enter pay", "inside", "leave pay", "check", "attach a.txt 'text'",
    ]  # fmt: skip


async def test_a_section_that_fails_is_not_left() -> None:
    api = FakeBackend()
    with pytest.raises(ValueError, match="half"):
        async with a_run(api).mutating("pay"):
            raise ValueError("half")
    assert api.said == ["check", "enter pay"]


@pytest.mark.parametrize(
    ("allowed", "actions", "action", "passes"),
    [
        (None, None, "pay", True),
        (("pay",), None, "pay", True),
        (("look",), None, "pay", False),
        ((), None, "pay", False),
        (None, ["look"], "pay", False),
        (("pay",), ["look"], "pay", False),
        (("pay",), ["pay"], "pay", True),
    ],
)
async def test_an_action_outside_the_lists_stops_the_run(
    allowed: tuple[str, ...] | None, actions: list[str] | None, action: str, passes: bool
) -> None:
    run = a_run(FakeBackend(), allowed=allowed, actions=actions)
    if passes:
        run.action(action)
        assert run.signals == []
        return
    with pytest.raises(Fail, match="ACTION_NOT_ALLOWED"):
        run.action(action)
    with pytest.raises(Fail, match="ACTION_NOT_ALLOWED"):
        async with run.mutating(action):
            raise AssertionError("it was entered")
    # A task that swallows the exception ends with the reason all the same.
    assert {signal.reason for signal in run.signals} == {"ACTION_NOT_ALLOWED"}


async def test_a_shared_task_enters_no_section() -> None:
    with pytest.raises(Fail, match="must not change anything"):
        async with a_run(FakeBackend(), mode="shared").mutating("pay"):
            raise AssertionError("it was entered")


def test_a_signal_is_noted() -> None:
    run = a_run(FakeBackend())
    run.signal("LOGIN_REQUIRED", "a banner")
    assert run.signals == [Signal("LOGIN_REQUIRED", "a banner")]


def test_a_plain_run_says_the_same() -> None:
    app, api = App(), PlainBackend()

    @app.task("sync")
    def plain(run: SyncRun) -> None: ...

    page: Any = object()
    run = SyncRun(a_grant(), app.tasks["sync"], api, page, page)
    run.safe("open")
    with run.mutating("pay"):
        api.said.append("inside")
    run.attach("a.bin", b"x")
    run.note("slow today")
    assert run.stopping
    assert api.said == [
        "check", "safe open False", "check", "enter pay", "inside", "leave pay", "check", "attach a.bin b'x'",
        "check", "note profile slow today",
    ]  # fmt: skip
