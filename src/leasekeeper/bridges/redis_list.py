"""A Redis list as a queue: programs `LPUSH` at one end, the bridge takes from the other.

One script moves messages from the list into a hash of taken ones; they are deleted there when they are jobs. A bridge
that starts, or that lost its connection, first reads that hash, where each message has kept its id. Needs Redis 6.2 or
Valkey.
"""

import base64
import json
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from leasekeeper.bridges.broker import Message, Rejected, Reply
from leasekeeper.errors import BrokerUnavailable, InputError, Problem

T = TypeVar("T")

_TIMEOUT_SECONDS: Final = 15.0
_SCAN_COUNT: Final = 500
_PASSING: Final = (
    "LOADING",
    "OOM",
    "READONLY",
    "MASTERDOWN",
    "MISCONF",
    "BUSY",
    "CLUSTERDOWN",
    "NOREPLICAS",
    "UNBLOCKED",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisLists:
    """Which lists a bridge uses. `from_right`: messages are pushed with LPUSH; else with RPUSH."""

    jobs: str
    invalid: str = ""
    replies: str | None = None
    from_right: bool = True

    @property
    def rejected(self) -> str:
        return self.invalid or f"{self.jobs}:invalid"

    def own(self, bridge: str, what: str) -> str:
        """A key of the bridge, in the same hash slot as the list, because scripts use both."""
        slot = self.jobs if "{" in self.jobs and "}" in self.jobs else f"{{{self.jobs}}}"
        return f"{slot}:leasekeeper:{bridge}:{what}"


@dataclass(slots=True)
class RedisBroker:
    """One list of one Redis server. See `broker.Broker`."""

    url: str = field(repr=False)
    lists: RedisLists
    bridge: str
    _client: Redis | None = None
    _scripts: Mapping[str, Any] = field(default_factory=dict)
    _worked: bool = False  # it was open before: an error now may be gone after a restart or a failover
    _left: list[str] = field(default_factory=list)  # ids that were taken before, to be read again

    @property
    def location(self) -> str:
        return f"Redis list {self.lists.jobs}"

    async def open(self) -> None:
        await self.close()
        try:
            self._client = Redis.from_url(
                self.url,
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_TIMEOUT_SECONDS,
                retry=Retry(NoBackoff(), 0),  # no retries: after a lost answer the messages are in the hash
            )
        except ValueError as error:
            raise InputError("the bridge cannot start", [Problem("url", str(error))]) from None
        self._scripts = {name: self._client.register_script(_lua(name)) for name in ("take", "reject")}
        for key, kinds in ((self.lists.jobs, (b"list", b"none")), (self.lists.rejected, (b"list", b"none"))):
            kind = await self._asked(self._client.type(key))
            if kind not in kinds:
                found = cast("bytes", kind).decode()
                raise InputError("the bridge cannot start", [Problem(key, f"is a {found} in Redis, not a list")])
        self._left = await self._taken_before()
        self._worked = True

    async def take(self, limit: int, seconds: float) -> Sequence[Message]:
        client = self._connected()
        if self._left:
            ids, self._left = self._left[:limit], self._left[limit:]
            bodies = await self._asked(cast("Awaitable[list[bytes | None]]", client.hmget(self._own("taken"), ids)))
            return [Message(id=each, body=body) for each, body in zip(ids, bodies, strict=True) if body is not None]
        found = await self._take_now(limit)
        if found or seconds <= 0:
            return found
        side = "RIGHT" if self.lists.from_right else "LEFT"
        wait = max(1, int(min(seconds, _TIMEOUT_SECONDS / 2)))
        waiting = client.blmove(self.lists.jobs, self._own("next"), wait, side, "LEFT")
        moved = await self._asked(cast("Awaitable[bytes | None]", waiting))
        return await self._take_now(limit) if moved is not None else []

    async def accept(self, messages: Sequence[Message]) -> None:
        ids = [str(message.id) for message in messages]
        await self._asked(self._connected().hdel(self._own("taken"), *ids))

    async def reject(self, rejected: Sequence[Rejected]) -> None:
        arguments: list[str] = []
        for each in rejected:
            document = {
                **_text(each.message.body),
                "code": each.code,
                "reason": each.reason,
                "bridge": self.bridge,
                "rejected_at": datetime.now(UTC).isoformat(),
            }
            arguments += [str(each.message.id), json.dumps(document, ensure_ascii=False)]
        keys = [self._own("taken"), self.lists.rejected]
        await self._asked(self._scripts["reject"](keys=keys, args=arguments))

    async def give_back(self, messages: Sequence[Message]) -> None:
        # They stay in the hash: in the list they would get a new id, and a job whose commit was not confirmed would run
        # twice.
        self._left = [*(str(message.id) for message in messages), *self._left]

    async def reply(self, replies: Sequence[Reply]) -> None:
        if self.lists.replies is None:
            raise InputError("there is no list for results")
        documents = [
            json.dumps({"headers": dict(each.headers), "body": each.body.decode()}, ensure_ascii=False)
            for each in replies
        ]
        await self._asked(self._connected().lpush(self.lists.replies, *documents))

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(RedisError, OSError):  # already disconnected
                await client.aclose()

    def _own(self, what: str) -> str:
        return self.lists.own(self.bridge, what)

    def _connected(self) -> Redis:
        if self._client is None:
            raise BrokerUnavailable(f"{self.location} is not connected")
        return self._client

    async def _take_now(self, limit: int) -> list[Message]:
        keys = [self._own("next"), self.lists.jobs, self._own("taken")]
        pop = "RPOP" if self.lists.from_right else "LPOP"
        flat: list[bytes] = await self._asked(self._scripts["take"](keys=keys, args=[limit, uuid4().hex[:12], pop]))
        return [Message(id=name.decode(), body=body) for name, body in zip(flat[::2], flat[1::2], strict=True)]

    async def _taken_before(self) -> list[str]:
        """The ids of messages that were taken and are not jobs yet, oldest first."""
        ids: set[str] = set()
        cursor = 0
        while True:
            scanned = self._connected().hscan(self._own("taken"), cursor, count=_SCAN_COUNT)
            cursor, page = await self._asked(cast("Awaitable[tuple[int, dict[bytes, bytes]]]", scanned))
            ids |= {name.decode() for name in page}
            if cursor == 0:
                return sorted(ids)

    async def _asked(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except (AuthenticationError, NoPermissionError) as error:
            raise InputError(f"{self.location}: Redis refused: {error}") from None
        except ResponseError as error:
            if self._worked or str(error).startswith(_PASSING):
                raise BrokerUnavailable(f"{self.location}: {error}") from None
            raise InputError(f"{self.location}: Redis refused: {error}") from None
        except (TimeoutError, RedisError, OSError) as error:
            raise BrokerUnavailable(f"{self.location}: {str(error) or type(error).__name__}") from None


def _text(body: bytes) -> dict[str, str]:
    """The message as text; base64 if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def _lua(name: str) -> str:
    return resources.files("leasekeeper.bridges").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
