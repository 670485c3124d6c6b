"""What the program of a session waits for a person to do: asked once, answered once.

It outlives the run that asked: a person may take the browser, and hand it back to a session that is another one. Knows
neither the store nor the browser.
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
    """`over`: the session has ended, so there is nothing to go on with."""

    WAITING = "waiting"
    ANSWERED = "answered"
    NOBODY_CAME = "nobody_came"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskEnd:
    """What came of it. `text` is the token of the session that goes on, if that is a new one."""

    state: AskState
    answer: HumanAnswer | None = None
    text: str | None = field(default=None, repr=False)
    why: str = ""


class SessionAsk:
    """One question. `session` has the browser: the one that asked, or after a take-over the next one.

    `owner` and `terms` are those of the session that asked, which the one that goes on has too.
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
        """Whether nobody has answered yet."""
        return self._end is None

    @property
    def end(self) -> AskEnd | None:
        """What came of it, once its review is closed."""
        return self._end if self._over.is_set() else None

    def taken(self, session: "HostedSession") -> None:
        """A person has the browser now, and is waited for without a limit."""
        self.session = session
        self.came.set()

    def answered(self, said: PersonAnswer) -> None:
        """A person has answered through the store. If one has taken the browser meanwhile, that counts."""
        if not self.came.is_set():
            answer = HumanAnswer(by=said.by, note=said.note, outcome=said.outcome)
            self.settle(AskEnd(state=AskState.ANSWERED, answer=answer))

    def settle(self, end: AskEnd) -> None:
        """There is an end. The first one counts."""
        self._end = self._end or end
        self.came.set()
        self._settled.set()

    def finish(self) -> None:
        """The review is closed: whoever waits is told."""
        self._over.set()

    async def settled(self) -> None:
        """Wait for an end: for its whole time, or until a person who came has answered."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.timeout.total_seconds()):
                await self.came.wait()
        if not self.came.is_set():
            self.settle(AskEnd(state=AskState.NOBODY_CAME))
        await self._settled.wait()

    async def ended(self, timeout: float | None) -> AskEnd | None:
        """Wait so long for the end, or as long as it takes; None: it still waits."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._over.wait()
        return self.end
