"""A job's browser on a worker, as the worker's server knows it: what the worker reported last, and calls to it.

Used in place of a `LiveRun`. The worker decides; the server checks who may ask. Leases are read from the store, because
the server does not trust a worker about accounts and pools.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from leasekeeper.app import HumanAnswer
from leasekeeper.core.leases import Lease
from leasekeeper.driver_port import DevToolsClient
from leasekeeper.runtime.person import Closed, Person
from leasekeeper.runtime.remote_client import remote_client
from leasekeeper.runtime.session_link import Link
from leasekeeper.wire.encoding import encode_in_full
from leasekeeper.wire.shapes import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNews:
    """What a worker reports about one browser: the whole state, each time. `key` is its first run.

    `leases` are those that it has served, in their order. `wants` is what its task waits for a person to do.
    """

    key: str
    leases: tuple[str, ...]
    person: Person | None = None
    wants: str | None = None
    may_hand_back: bool = False
    over: bool = False

    def as_json(self) -> dict[str, Any]:
        """The JSON that is sent among the news of sessions."""
        return {"live": encode_in_full(self)}


class RemoteLive:
    """One browser of a worker. Raises Conflict (WORKER_AWAY) while the worker is not connected.

    `caught_up` waits until the server knows all that the worker has reported so far.
    """

    def __init__(self, link: Link, caught_up: Callable[[], Awaitable[None]], news: LiveNews, leases: Sequence[Lease]):
        self._link = link
        self._caught_up = caught_up
        self._news = news
        self.leases = leases

    def hear(self, news: LiveNews, leases: Sequence[Lease]) -> None:
        """Take over what the worker reports now. `leases` are as the store has them."""
        self._news, self.leases = news, leases

    @property
    def lease(self) -> Lease:
        """The current lease."""
        return self.leases[-1]

    @property
    def job_id(self) -> str | None:
        return self.leases[0].job_id

    @property
    def person(self) -> Person | None:
        return self._news.person

    @property
    def wants(self) -> str | None:
        return self._news.wants

    @property
    def may_hand_back(self) -> bool:
        return self._news.may_hand_back

    def viewer(self) -> AbstractAsyncContextManager[DevToolsClient]:
        """A client that shows the browser to a person. Raises ClientRefused."""
        return remote_client(self._link, "live_view", {"key": self._news.key})

    async def take(self, person: Person) -> None:
        """Give a person control. Raises what `LiveRun.take` does."""
        await self._call("live_take", person=encode_in_full(person))

    async def hand_back(self, answer: HumanAnswer) -> None:
        """Let the task go on. Raises what `LiveRun.hand_back` does."""
        await self._call("live_hand_back", answer=encode_in_full(answer))

    async def release(self, message: str) -> Closed:
        """Close the browser that a person has. Raises what `LiveRun.release` does."""
        return decode(Closed, await self._call("live_release", message=message))

    async def _call(self, name: str, **arguments: Any) -> Any:
        answer = await self._link.call(name, {"key": self._news.key, **arguments})
        await self._caught_up()
        return answer
