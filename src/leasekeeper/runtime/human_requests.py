"""Requests of a session's program to a person: each is asked once and answered once.

A request outlives the run that asked: a person may take the browser, and hand it back to a new session. Knows neither
the store nor the browser.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from leasekeeper.app import HumanAnswer
from leasekeeper.core.control import PersonAnswer

if TYPE_CHECKING:
    from leasekeeper.runtime.session_host import HostedSession
    from leasekeeper.runtime.session_terms import SessionTerms


class AskState(StrEnum):
    """The state of a request. `over`: the session has ended, so its program cannot go on."""

    WAITING = "waiting"
    ANSWERED = "answered"
    NOBODY_CAME = "nobody_came"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskEnd:
    """How a request ended. `text` is the token of the session that goes on, if that is a new one."""

    state: AskState
    answer: HumanAnswer | None = None
    text: str | None = field(default=None, repr=False)
    why: str = ""


class SessionAsk:
    """One request. `session` has the browser: the session that asked, or the next one after a person took it over.

    `owner` and `terms` are those of the session that asked; the session that goes on has the same.
    """

    def __init__(self, session: "HostedSession", terms: "SessionTerms", what: str, timeout: timedelta) -> None:
        self.session = session
        self.owner = session.owner
        self.terms = terms
        self.what = what
        self.timeout = timeout
        self.came = asyncio.Event()
        self._end: AskEnd | None = None
        self._settled = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def waits(self) -> bool:
        """Whether it has not been settled yet."""
        return self._end is None

    @property
    def end(self) -> AskEnd | None:
        """How it ended, once its review is closed; else None."""
        return self._end if self._over.is_set() else None

    def taken(self, session: "HostedSession") -> None:
        """A person has taken the browser. From now on `settled` waits for them without a timeout."""
        self.session = session
        self.came.set()

    def answered(self, said: PersonAnswer) -> None:
        """A person has answered through the store. Ignored if a person has taken the browser meanwhile."""
        if not self.came.is_set():
            answer = HumanAnswer(by=said.by, note=said.note, outcome=said.outcome)
            self.settle(AskEnd(state=AskState.ANSWERED, answer=answer))

    def settle(self, end: AskEnd) -> None:
        """Record how it ended. Only the first call counts."""
        self._end = self._end or end
        self.came.set()
        self._settled.set()

    def finish(self) -> None:
        """The review is closed: wake everyone who waits in `ended`."""
        self._over.set()

    async def settled(self) -> None:
        """Wait until it is settled: NOBODY_CAME after `timeout`, but without a limit once a person has come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.timeout.total_seconds()):
                await self.came.wait()
        if not self.came.is_set():
            self.settle(AskEnd(state=AskState.NOBODY_CAME))
        await self._settled.wait()

    async def ended(self, timeout: float | None) -> AskEnd | None:
        """Wait up to `timeout` seconds for the end (None: without a limit). Returns None if it has not ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._over.wait()
        return self.end
