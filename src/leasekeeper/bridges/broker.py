"""What a bridge needs of a broker: take messages, and say of each that it is safe elsewhere, or why it is not a job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `id` is the same when the broker delivers it again; None: this broker has no such id for it.

    `handle` is what the broker needs to find the message again.
    """

    id: str | None
    body: bytes = field(repr=False)
    handle: object = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A message that is not a job, and why, in words for whoever sent it."""

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
    """A queue of other people. Guarantees, for each of them:

    - A message that was taken is neither lost nor given up until `accept` or `reject` says so: if this process dies, it
      comes again, to this bridge or another one.
    - `accept`, `reject` and `reply` return when the broker has it. Done twice they do no harm, but for a reply or a
      rejected message that may be there twice.
    - Whatever fails because the broker is away raises BrokerUnavailable; after that `open` begins anew.
    """

    @property
    def location(self) -> str:
        """What people call it, without credentials."""
        ...

    async def open(self) -> None:
        """Connect, and check that queues exist. Raises InputError if it can never work, else BrokerUnavailable."""
        ...

    async def take(self, limit: int, seconds: float) -> Sequence[Message]:
        """Up to `limit` messages, oldest first; waits up to `seconds` for the first."""
        ...

    async def accept(self, messages: Sequence[Message]) -> None:
        """These are jobs now: the broker forgets them."""
        ...

    async def reject(self, rejected: Sequence[Rejected]) -> None:
        """These are no jobs: the broker keeps them apart, each with its reason."""
        ...

    async def give_back(self, messages: Sequence[Message]) -> None:
        """These were taken, and it is not known that they are jobs: they come again at once, each with the same id."""
        ...

    async def reply(self, replies: Sequence[Reply]) -> None:
        """Put results where they were asked for."""
        ...

    async def close(self) -> None: ...
