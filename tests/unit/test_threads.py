"""Blocking work in threads, on a machine that cannot start another thread."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from leasekeeper import threads
from leasekeeper.threads import run_in_thread

SECONDS = 10.0


def busy_pool(monkeypatch: pytest.MonkeyPatch, *, free: threading.Event, on_refusal: Callable[[], object]) -> None:
    """The only thread of the pool is busy until `free`, and no other one can be started."""
    pool = ThreadPoolExecutor(2)
    pool.submit(free.wait, SECONDS)
    monkeypatch.setattr(threads, "_THREADS", pool)

    def refuse(_thread: threading.Thread) -> None:
        on_refusal()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


async def test_work_is_never_done_if_its_caller_was_told_that_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free, done = threading.Event(), list[str]()
    busy_pool(monkeypatch, free=free, on_refusal=lambda: None)
    with pytest.raises(RuntimeError, match="new thread"):
        await run_in_thread(done.append, "lock")
    free.set()
    threads._THREADS.shutdown()
    assert done == []


async def test_work_that_another_thread_has_begun_returns_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    free, begun = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        return "lock"

    def free_the_thread() -> None:
        free.set()
        assert begun.wait(SECONDS)

    busy_pool(monkeypatch, free=free, on_refusal=free_the_thread)
    assert await run_in_thread(work) == "lock"
    threads._THREADS.shutdown()


async def test_the_error_of_the_work_is_raised() -> None:
    def work() -> None:
        raise RuntimeError("its own")

    with pytest.raises(RuntimeError, match="its own"):
        await run_in_thread(work)
