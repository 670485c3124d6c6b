"""The store behind a server, over HTTP: the same operations with a URL and a token, and no database password.

Every operation is one POST. A call without a response is sent again with the same request id, and the server returns
the answer of the first time, even after a restart. If the response to a grant never comes, the client asks for it until
the lease would have expired, and gives the lease back. Timeouts are shorter than a holder's deadline, so that a call
without a response does not cost a lease.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast

import httpx2

from leasekeeper.core.calls import CallAttempt, Request
from leasekeeper.core.policy import Policy
from leasekeeper.core.settle import Ending
from leasekeeper.errors import InputError, LeasekeeperError, NotAuthenticated, Problem, StoreError, StoreUnavailable
from leasekeeper.ports import Grant, HandedOver, Store, StoreInfo
from leasekeeper.server_trust import authorization, tls_fault, trusted
from leasekeeper.stores.sql.codec import check_structure
from leasekeeper.wire import error_from_json
from leasekeeper.wire.operations import ATTEMPT_HEADER, Operation, operations
from leasekeeper.wire.shapes import VERSION

MAX_CONNECTIONS: Final = 100
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
# Status codes of a server, or of a proxy in front of it, that is unavailable: the call is retried.
AWAY: Final = frozenset({502, 503, 504})
# The rate limit for unknown tokens: too many calls with a wrong token came from this address. The call is retried.
TOO_MANY: Final = 429
# Operations that grant leases: if the answer does not reach the caller, the leases are given back.
_GRANTING: Final = frozenset({"claim", "acquire", "hand_over"})


@dataclass(frozen=True, slots=True)
class Slot:
    """The request id of a call: the calls of one slot are sent one after another, each with the next `sequence`."""

    name: str
    sequence: int = 0


class Slots:
    """The slots of one client: as many as its most concurrent calls. The server keeps one answer per slot."""

    def __init__(self) -> None:
        self._prefix = os.urandom(8).hex()
        self._made = 0
        self._free: list[Slot] = []

    def take(self) -> Slot:
        """A slot that no call uses now."""
        if self._free:
            return self._free.pop()
        self._made += 1
        return Slot(f"{self._prefix}-{self._made}")

    def give_back(self, slot: Slot) -> None:
        """Free the slot after its call has ended. The next call gets the next number, so that the server refuses a late
        copy of this call."""
        self._free.append(Slot(slot.name, slot.sequence + 1))


class HttpStore:
    """One client of a server. The port's operations are made from its signatures: see `wire.operations`."""

    def __init__(self, url: str, token: str, policy: Policy, ca: str = "") -> None:
        self._url = url.rstrip("/")
        self._timeout = policy.store_timeout.total_seconds()
        self._client = httpx2.AsyncClient(
            headers={**authorization(token), "Content-Type": "application/json"},
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=MAX_CONNECTIONS),
            timeout=self._timeout,
            verify=trusted(self._url, ca),
            trust_env=self._url.startswith("https:"),
        )
        self._ttl = policy.timing.ttl.total_seconds()
        # Parsed once: parsing a URL takes as long as encoding a call.
        self._urls = {name: httpx2.URL(f"{self._url}/v1/store/{name}") for name in operations()}
        self._slots = Slots()
        self._undo: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> Any:
        operation = operations().get(name)
        if operation is None:
            raise AttributeError(f"a store has no operation {name}")
        return partial(self._perform, operation, None)

    def once(self, request: Request) -> Store:
        return cast(Store, _OnceOverHttp(self._perform, request))

    async def close(self) -> None:
        """Give back leases whose callers were cancelled, then close the connections. Other leases stay live until they
        are released or expire."""
        if self._undo:
            _, late = await asyncio.wait(self._undo, timeout=self._timeout)
            for task in late:
                task.cancel()
        await self._client.aclose()

    async def _perform(self, operation: Operation, request: Request | None, /, *positional: Any, **named: Any) -> Any:
        arguments = operation.bind(*positional, **named)
        slot = self._slots.take() if request is None else Slot(request.slot, request.sequence)
        attempt = CallAttempt.FIRST if request is None else request.attempt
        if operation.name not in _GRANTING or request is not None:
            try:
                return await self._call(operation, arguments, slot, attempt)
            finally:
                if request is None:
                    self._slots.give_back(slot)
        asking = asyncio.ensure_future(self._call(operation, arguments, slot, attempt))
        try:
            answer = await asyncio.shield(asking)
        except (asyncio.CancelledError, StoreUnavailable):
            undo = asyncio.ensure_future(self._give_back(operation, arguments, slot, asking))
            self._undo.add(undo)
            undo.add_done_callback(self._undo.discard)
            raise
        except LeasekeeperError:
            self._slots.give_back(slot)
            raise
        self._slots.give_back(slot)
        return answer

    async def _give_back(
        self, operation: Operation, arguments: Mapping[str, Any], slot: "Slot", asking: "asyncio.Future[Any]"
    ) -> None:
        """Give back the leases of a call whose caller was cancelled or got no answer: their jobs return to their places
        in the queue."""
        with suppress(LeasekeeperError):
            try:
                answer = await asking
            except StoreUnavailable:
                answer = await self._call(operation, arguments, slot, CallAttempt.ASK, patience=self._ttl)
            refs = [grant.lease.ref for grant in _granted(answer)]
            if refs:
                await cast(Store, self).settle([Ending(ref=ref, not_started=True) for ref in refs])
        self._slots.give_back(slot)

    async def _call(
        self,
        operation: Operation,
        arguments: Mapping[str, Any],
        slot: "Slot",
        attempt: CallAttempt,
        *,
        patience: float = 0.0,
    ) -> Any:
        content = _content(operation, slot, arguments)
        waits = _wait_seconds(operation.name, arguments) + patience
        document = await self._until_answered(operation.name, content, waits, attempt)
        value = operation.read_answer(arguments, document)
        return replace(value, kind="http", location=self._url) if isinstance(value, StoreInfo) else value

    async def _until_answered(self, name: str, content: bytes, waits: float, attempt: CallAttempt) -> object:
        """Retry the call until it is answered, for at most `waits` seconds plus twice the timeout. A holder's deadline
        is later than that."""
        give_up_at = time.monotonic() + waits + 2 * self._timeout
        pause = FIRST_PAUSE
        while True:
            left = give_up_at - time.monotonic()
            timeout = min(self._timeout + waits, max(left, 0.001))
            try:
                answer = await self._client.post(
                    self._urls[name],
                    content=content,
                    headers={ATTEMPT_HEADER: attempt},
                    timeout=timeout,
                )
            except (httpx2.TransportError, OSError) as error:
                fault: LeasekeeperError = self._unreachable(error)
                if tls_fault(error) is not None:
                    raise fault from None
            except RuntimeError:
                raise StoreUnavailable("the store is closed") from None
            else:
                if answer.status_code not in {*AWAY, TOO_MANY}:
                    return self._document(answer)
                fault = self._error(answer)
            if time.monotonic() + pause >= give_up_at:
                raise fault
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            attempt = CallAttempt.AGAIN if attempt is CallAttempt.FIRST else attempt

    def _unreachable(self, error: Exception) -> StoreUnavailable:
        wrong = tls_fault(error)
        if wrong is not None:
            return StoreUnavailable(
                f"the TLS certificate of {self._url} is not trusted: {wrong}; "
                "the setting store_ca is the file of the certificates that signed it"
            )
        return StoreUnavailable(f"no response from {self._url}: {type(error).__name__} {error}".rstrip())

    def _document(self, answer: httpx2.Response) -> object:
        if answer.status_code != 200:
            raise self._error(answer)
        try:
            return json.loads(answer.content)
        except ValueError:
            raise StoreError(f"{self._url} does not answer as a Leasekeeper server does") from None

    def _error(self, answer: httpx2.Response) -> LeasekeeperError:
        """The Leasekeeper error in a response; for any other response, an error made from its status code."""
        try:
            problem = json.loads(answer.content)
            if isinstance(problem, dict) and isinstance(problem.get("code"), str):
                return error_from_json({**problem, "message": problem.get("detail", "")})
        except (ValueError, LeasekeeperError):
            pass
        message = f"{self._url} answers with HTTP {answer.status_code}, but not as a Leasekeeper server does"
        if answer.status_code in AWAY:
            return StoreUnavailable(message)
        return NotAuthenticated(message) if answer.status_code == 401 else StoreError(message)


class _OnceOverHttp:
    """A store for one call, with the caller's own request id."""

    def __init__(self, perform: Callable[..., Awaitable[Any]], request: Request) -> None:
        self._perform = perform
        self._request = request

    def __getattr__(self, name: str) -> Any:
        operation = operations().get(name)
        if operation is None:
            raise AttributeError(f"a store has no operation {name} that may be repeated")
        return partial(self._perform, operation, self._request)


def _check_structures(name: str, arguments: Mapping[str, Any]) -> None:
    """Raise InputError for values that cannot be stored as JSON, as other stores do."""
    problems = []
    for where, value in _structures(name, arguments):
        try:
            check_structure(value)
        except (TypeError, ValueError) as error:
            problems.append(Problem(where, f"cannot be kept as JSON: {error}"))
    if problems:
        raise InputError(f"{name} was not called", problems)


def _structures(name: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The arguments of a call that may be any JSON, each with its path."""
    match name:
        case "settle" | "hand_over" | "transfer":
            endings = arguments["endings"] if name == "settle" else [arguments["ending"]]
            for number, ending in enumerate(endings):
                for part in ("output", "evidence", "actual", "timings"):
                    yield f"endings[{number}].{part}", getattr(ending, part)
        case "submit":
            for number, spec in enumerate(arguments["specs"]):
                yield f"jobs[{number}].payload", spec.payload
        case "resolve":
            for number, each in enumerate(arguments["resolutions"]):
                yield f"resolutions[{number}].facts.evidence", each.facts.evidence
        case "record":
            yield "data", arguments["event"].data


def _content(operation: Operation, slot: Slot, arguments: Mapping[str, Any]) -> bytes:
    """The body of the call as JSON. Raises InputError if an argument cannot be encoded."""
    _check_structures(operation.name, arguments)
    try:
        body = {
            "version": VERSION,
            "request_id": slot.name,
            "sequence": slot.sequence,
            "arguments": operation.write(arguments),
        }
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        problem = Problem("arguments", f"cannot be kept as JSON: {error}")
        raise InputError(f"{operation.name} was not called", [problem]) from None


def _granted(answer: Any) -> list[Grant]:
    match answer:
        case Grant():
            return [answer]
        case HandedOver(grant=Grant() as grant):
            return [grant]
        case list():
            return [each for each in answer if isinstance(each, Grant)]
        case _:
            return []


def _wait_seconds(name: str, arguments: Mapping[str, Any]) -> float:
    """How many seconds the server may wait before it answers: the `timeout` of `wait`, 0 for other operations."""
    timeout: timedelta = arguments.get("timeout", timedelta(0)) if name == "wait" else timedelta(0)
    return max(0.0, timeout.total_seconds())


async def open_http(url: str, token: str, policy: Policy, ca: str = "") -> Store:
    """Connect to a server, and check that it answers and knows the token."""
    opened = HttpStore(url, token, policy, ca)
    store = cast(Store, opened)
    try:
        await store.check()
    except BaseException:
        await opened.close()
        raise
    return store
