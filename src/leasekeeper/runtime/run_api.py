"""The runtime's side of a Run: what a task reports is written to the store here, under its lease."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from leasekeeper.app import Content, HumanAnswer
from leasekeeper.config import SecretConfig
from leasekeeper.core.control import answer_of
from leasekeeper.core.failures import Reason
from leasekeeper.core.leases import Lease, LeaseRef
from leasekeeper.core.notes import NoteAbout
from leasekeeper.errors import Fail, InputError, LeasekeeperError
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Store
from leasekeeper.runtime.evidence import RunEvidence
from leasekeeper.runtime.heartbeat import (
    KeptLease,
    checkpoint_with_retries,
    enter_section_with_retries,
    leave_section_with_retries,
    note_with_retries,
    request_person_with_retries,
)
from leasekeeper.runtime.live_runs import LiveRun
from leasekeeper.runtime.secrets import payload_secret
from leasekeeper.runtime.shutdown import Shutdown

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


class RunApi:
    """For an `async def` task. Every write is checked twice: against the holder's own deadline, and by the store."""

    def __init__(
        self,
        store: Store,
        kept: KeptLease,
        stop: Shutdown,
        evidence: RunEvidence,
        redactor: Redactor,
        secrets: SecretConfig,
        *,
        url: Callable[[], str | None],
        flush: Callable[[], Awaitable[None]],
        live: LiveRun,
    ) -> None:
        self._store = store
        self._live = live
        self._kept = kept
        self._stop = stop
        self._evidence = evidence
        self._redactor = redactor
        self._secrets = secrets
        self._url = url
        self._flush = flush
        self._section: str | None = None

    @property
    def stopping(self) -> bool:
        return self._stop.asked.is_set()

    @property
    def ref(self) -> LeaseRef:
        return self._kept.lease.ref

    def check(self) -> None:
        self._kept.check()

    async def checkpoint(self, step: str, *, flush: bool) -> None:
        if flush:
            await self._flush()
        await self.record_step(step, self._url())

    async def record_step(self, step: str, url: str | None) -> None:
        """Record the step. A worker that was asked to stop ends the run here: nothing is half done."""
        await checkpoint_with_retries(self._store, self._kept, step, self._redactor.url(url) if url else None)
        _LOG.debug("safe step %s", step)
        if self.stopping and self._section is None:
            raise Fail(Reason.WORKER_STOPPED, f"the worker was asked to stop; the run ended at safe step {step}")

    async def enter(self, name: str, *, idempotent: bool) -> None:
        await enter_section_with_retries(self._store, self._kept, name, idempotent=idempotent)
        self._section = name
        _LOG.debug("enters mutating section %s", name)

    async def leave(self, name: str) -> None:
        await leave_section_with_retries(self._store, self._kept, name)
        self._section = None
        _LOG.debug("left mutating section %s", name)

    async def attach(self, name: str, content: Content) -> None:
        await self._evidence.attach(name, content)

    async def note(self, text: str, about: NoteAbout) -> None:
        """Write a note. Known secrets are redacted in it."""
        await note_with_retries(self._store, self._kept, self._redactor.text(text), about)

    async def secret(self, reference: str) -> str:
        """A secret that the payload names: from now on it is redacted in everything that this worker keeps."""
        value = await payload_secret(self._store, self.ref, reference, self._secrets)
        self._redactor.add(value)
        return value

    def continue_under(self, kept: KeptLease, evidence: RunEvidence) -> None:
        """A person handed the browser back: from now on, write under the lease of the next run."""
        self._kept, self._evidence = kept, evidence

    def person_left(self, error: Exception) -> None:
        """Nobody will answer any more: `request_human` raises this error if the task still waits in it."""
        if self._live.asks is not None and not self._live.asks.done():
            self._live.asks.set_exception(error)
            self._live.asks.exception()  # the task may have left
            self._live.came.set()

    async def request_human(self, what: str, timeout: timedelta) -> HumanAnswer:
        """Ask for a person, and return their answer. The timeout ends when somebody answers or takes the browser; who
        has taken it is then waited for. Raises Fail if nobody came in time."""
        live = self._live
        if live.asks is not None:
            raise InputError("the task asks for a person already: it can wait for one at a time")
        said = self._redactor.text(what)
        kept = self._kept
        await request_person_with_retries(self._store, kept, said)
        answer = live.ask(said)
        kept.hear_answers(live.answered)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout.total_seconds()):
                    await live.came.wait()
            if not live.came.is_set():
                await self._read_answer(kept, live)
            if not live.came.is_set():
                raise Fail(Reason.HUMAN_REVIEW_REQUIRED, f"nobody came within {timeout.total_seconds():g} s: {said}")
            said_by: HumanAnswer = await answer
            return said_by
        finally:
            live.stop_asking()
            kept.on_answer = None
            with suppress(LeasekeeperError):
                await request_person_with_retries(self._store, self._kept, None)

    async def _read_answer(self, kept: KeptLease, live: LiveRun) -> None:
        """Read an answer that was given at the last moment and that no renewal has brought yet."""
        with suppress(LeasekeeperError):
            said = answer_of(await self._store.get(Lease, kept.lease.lease_id))
            if said is not None:
                live.answered(said)


class ThreadRunApi:
    """For a plain `def` task: the same calls, made from its thread and run in the worker's loop."""

    def __init__(
        self,
        api: RunApi,
        loop: asyncio.AbstractEventLoop,
        *,
        url: Callable[[], str | None],
        flush: Callable[[], None],
    ) -> None:
        self._api = api
        self._loop = loop
        self._url = url
        self._flush = flush

    @property
    def stopping(self) -> bool:
        return self._api.stopping

    def check(self) -> None:
        self._api.check()

    def checkpoint(self, step: str, *, flush: bool) -> None:
        if flush:
            self._flush()
        self._ask(self._api.record_step(step, self._url()))

    def enter(self, name: str, *, idempotent: bool) -> None:
        self._ask(self._api.enter(name, idempotent=idempotent))

    def leave(self, name: str) -> None:
        self._ask(self._api.leave(name))

    def attach(self, name: str, content: Content) -> None:
        self._ask(self._api.attach(name, content))

    def note(self, text: str, about: NoteAbout) -> None:
        self._ask(self._api.note(text, about))

    def secret(self, reference: str) -> str:
        return self._ask(self._api.secret(reference))

    def request_human(self, what: str, timeout: timedelta) -> HumanAnswer:
        return self._ask(self._api.request_human(what, timeout))

    def _ask(self, what: Awaitable[T]) -> T:
        async def ask() -> T:
            return await what

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result()
