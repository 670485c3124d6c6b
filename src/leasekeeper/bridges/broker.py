"""The protocol of a message broker: take messages, accept those that became jobs, reject invalid ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `id` is the same when the broker delivers it again; None: it has no such id.

    `handle` is the broker's own reference to the message.
    """

    id: str | None
    body: bytes = field(repr=False)
    handle: object = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """An invalid message, with the reason for its sender."""

    message: Message
    code: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The result of a job, signed like a webhook. `id` is the same at every attempt; `type` is the alert's name."""

    id: str
    type: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


class Broker(Protocol):
    """A message queue. Guarantees, for each implementation:

    - A message that was taken is not lost before `accept` or `reject`: if this process dies, it is delivered again, to
      this bridge or another one.
    - `accept`, `reject` and `reply` return when the broker has confirmed. They may be repeated, but then a reply or a
      rejected message may be there twice.
    - A failure because the broker is unavailable raises BrokerUnavailable; after that, call `open` again.
    """

    @property
    def location(self) -> str:
        """Its name for people, without credentials."""
        ...

    async def open(self) -> None:
        """Connect, and check that queues exist. Raises InputError for a wrong configuration, else BrokerUnavailable."""
        ...

    async def take(self, limit: int, seconds: float) -> Sequence[Message]:
        """Up to `limit` messages, oldest first; waits up to `seconds` for the first."""
        ...

    async def accept(self, messages: Sequence[Message]) -> None:
        """These are jobs now: the broker deletes them."""
        ...

    async def reject(self, rejected: Sequence[Rejected]) -> None:
        """These are invalid: the broker moves them to a queue of their own, each with its reason."""
        ...

    async def give_back(self, messages: Sequence[Message]) -> None:
        """These were taken, but may not be jobs yet: they are delivered again at once, each with the same id."""
        ...

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Send results to their queue."""
        ...

    async def close(self) -> None: ...
