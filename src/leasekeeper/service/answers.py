"""Calls that change something, by token and request id: a call that is sent again, because its answer was lost, gets
the first answer. Answers are in the store (`Store.once`), where a restart does not lose them; here a call that is sent
again while the first is under way joins it.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Final

from leasekeeper.core.calls import CallAttempt, Request
from leasekeeper.core.tokens import OPERATIONS, ApiToken, Scope

# These are idempotent, or only read, so they are simply done again.
REPEATABLE: Final = frozenset(
    {
        *(name for name, needs in OPERATIONS.items() if needs.scope is Scope.READ),
        *("renew", "wait", "report", "note_token_uses", "unresolved", "lease_secrets", "stored_token"),
        *("sealed_secrets", "promote", "heal", "prune"),
    }
)


def request_of(token: ApiToken, request_id: str, sequence: int, content: bytes, attempt: CallAttempt | None) -> Request:
    """The name of a call. A token never gets the answers of another."""
    return Request(
        slot=f"{token.token_id}/{request_id}",
        sequence=sequence,
        body=hashlib.blake2b(content, digest_size=12).hexdigest(),
        attempt=attempt or CallAttempt.AGAIN,
    )


class CallsUnderWay:
    """The calls that are being answered now."""

    def __init__(self) -> None:
        self._calls: dict[Request, asyncio.Future[bytes]] = {}

    async def join(self, request: Request, work: Callable[[], Awaitable[bytes]]) -> bytes:
        """The answer to this call: to the one that is under way, if there is one."""
        # The number of attempts is not part of its name.
        name = Request(slot=request.slot, sequence=request.sequence, body=request.body)
        call = self._calls.get(name)
        if call is None:
            call = self._calls[name] = asyncio.ensure_future(work())
            call.add_done_callback(lambda _: self._calls.pop(name, None))
        # A caller that disconnects does not stop the work: it may ask again.
        return await asyncio.shield(call)
