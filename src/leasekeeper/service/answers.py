"""Answers to calls that change something, by token and request id: a call that is sent again, because its answer was
lost on the way, gets the answer of the first time and does nothing twice. Kept in this process, for some minutes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from leasekeeper.core.tokens import OPERATIONS, Scope

# Longer than any client asks again.
KEPT_SECONDS: Final = 180.0
MAX_KEPT: Final = 10_000

# Doing these twice is the same as doing them once; and what only reads is read again.
REPEATABLE: Final = frozenset(
    {
        *(name for name, needs in OPERATIONS.items() if needs.scope is Scope.READ),
        *("renew", "wait", "report", "note_token_uses", "unresolved", "lease_secrets", "stored_token"),
        *("sealed_secrets", "promote", "heal", "prune"),
    }
)


class Answers:
    """What was answered lately."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[str, tuple[float, asyncio.Future[bytes]]] = {}

    async def once(self, key: str, work: Callable[[], Awaitable[bytes]]) -> bytes:
        """The answer to this call: of the first time, if it came before, also if that one is still under way.

        An error is not kept: it means that nothing was done.
        """
        self._forget()
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = (self._now(), asyncio.ensure_future(work()))
            known[1].add_done_callback(lambda done: self._ended(key, done))
        # A caller that goes away does not stop the work: it may ask again.
        return await asyncio.shield(known[1])

    def _ended(self, key: str, done: "asyncio.Future[bytes]") -> None:
        if done.cancelled() or done.exception() is not None:
            self._known.pop(key, None)

    def _forget(self) -> None:
        """Drop the oldest, which are first."""
        while self._known:
            oldest = next(iter(self._known))
            since, answer = self._known[oldest]
            fresh = self._now() - since < KEPT_SECONDS
            if not answer.done() or (fresh and len(self._known) <= MAX_KEPT):
                return
            del self._known[oldest]
