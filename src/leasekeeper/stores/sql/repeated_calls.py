"""Stored answers of calls that may be repeated (`Store.once`): written in the change's commit, found by request id.

An answer is small: of its records only the ids are stored, and the records are read again. Knows operations only by
name.
"""

import copy
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.accounts import Account, Proxy
from leasekeeper.core.calls import MAX_ANSWER_BYTES, CallAttempt, Request
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.fleet import STORE as PROFILE_STORE
from leasekeeper.core.jobs import Job
from leasekeeper.core.lanes import LaneFacts
from leasekeeper.core.leases import Lease, is_live
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.workers import Worker
from leasekeeper.errors import Conflict, LeasekeeperError, NotFound
from leasekeeper.ports import Grant, HandedOver, Page, Store, Submitted
from leasekeeper.stores.sql.codec import Row, to_us
from leasekeeper.stores.sql.engine import AnsweredBefore, Context, Engine, Params, Tx
from leasekeeper.stores.sql.lanes import grant_of
from leasekeeper.stores.sql.reading import get
from leasekeeper.stores.sql.snapshots import newest_among
from leasekeeper.wire.encoding import encode_in_full, wire_names
from leasekeeper.wire.operations import operations
from leasekeeper.wire.shapes import VERSION, to_document

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

# Records that are stored by their id. A grant is stored by the id of its lease.
_IDS: Final[Mapping[type, Callable[[Any], str]]] = {
    Grant: lambda grant: grant.lease.lease_id,
    Job: lambda job: job.job_id,
    Lease: lambda lease: lease.lease_id,
    Delivery: lambda delivery: delivery.delivery_id,
    Worker: lambda worker: worker.incarnation,
}
_KINDS: Final = {kind.__name__: kind for kind in _IDS}
_HOLDERS: Final = (Submitted, HandedOver, Page)
_BY_ID: Final = "kept_by_id"
# Says that there is no answer to store: nothing was changed, or the call raises an error.
NOTHING: Final = object()


class Naming:
    """A call that may be repeated: its operation and its request."""

    __slots__ = ("name", "request")

    def __init__(self, name: str, request: Request) -> None:
        self.name = name
        self.request = request

    def row(self, tx: Tx, value: object) -> Params:
        """The row that stores this answer."""
        text: str | None = json.dumps({"version": VERSION, "value": _stored_form(value)}, separators=(",", ":"))
        if text is not None and len(text) > MAX_ANSWER_BYTES:
            text = None
        now, _ = tx.clock()
        request = self.request
        return {
            "slot": request.slot,
            "sequence": request.sequence,
            "operation": self.name,
            "body": request.body,
            "answer": text,
            "at": to_us(now),
        }


class RepeatableOperations:
    """Base of the parts of `SqlStore`: changes whose answer is stored if the call may be repeated."""

    _engine: Engine
    _ctx: Context
    naming: Naming | None = None

    def once(self, request: Request) -> Store:
        return cast(Store, _Once(self, request))

    def _change(
        self, operation: Callable[[Tx], T], *, answer: Callable[[T], object] = lambda value: value, brief: bool = False
    ) -> "asyncio.Future[T]":
        """Run an operation in one commit. `answer` turns its result into the answer to store, or NOTHING."""
        naming = self.naming
        if naming is None:
            return self._engine.change(operation, brief=brief)

        def kept(tx: Tx) -> T:
            value = operation(tx)
            answered = answer(value)
            if answered is not NOTHING:
                tx.write("put_answers", [naming.row(tx, answered)])
            return value

        return self._engine.change(kept, brief=brief)

    async def known_answer(self, naming: Naming, arguments: Mapping[str, Any]) -> Any:
        """The stored answer of this call, or NOTHING. Raises Conflict if the request id belongs to another call."""
        return await self._engine.view(lambda tx: _read(tx, self._ctx, naming, arguments))


class _Once:
    """A store for one call that may be repeated. It has the operations of the port."""

    def __init__(self, store: RepeatableOperations, request: Request) -> None:
        self._store = store
        self._request = request

    def __getattr__(self, name: str) -> Any:
        if name not in operations():
            raise AttributeError(f"a store has no operation {name} that may be repeated")
        return partial(self._perform, name)

    async def _perform(self, name: str, /, *positional: Any, **named: Any) -> Any:
        naming = Naming(name, self._request)
        store = copy.copy(self._store)
        store.naming = naming
        arguments = operations()[name].bind(*positional, **named)
        known = partial(store.known_answer, naming, arguments)
        if self._request.attempt is not CallAttempt.FIRST and (found := await known()) is not NOTHING:
            return found
        if self._request.attempt is CallAttempt.ASK:
            raise NotFound(f"no answer is kept for this call of {name}", what="answer", id=self._request.slot)
        try:
            return await getattr(store, name)(*positional, **named)
        except AnsweredBefore:
            # Another copy of this call was committed meanwhile.
            return await known()
        except LeasekeeperError:
            # The first copy of this call may be the cause: it took the profile, or opened the section.
            if (found := await known()) is NOTHING:
                raise
            return found


def _stored_form(value: object) -> object:
    """The value as JSON, with ids in place of records."""
    kind = type(value)
    if kind in _IDS:
        return {_BY_ID: [kind.__name__, _IDS[kind](value)]}
    if isinstance(value, list | tuple):
        return [_stored_form(each) for each in value]
    if isinstance(value, _HOLDERS):
        return {name: _stored_form(getattr(value, attribute)) for attribute, name in wire_names(kind)}
    return encode_in_full(value)


def _read(tx: Tx, ctx: Context, naming: Naming, arguments: Mapping[str, Any]) -> Any:
    request = naming.request
    (rows,) = tx.read(("answer_of", {"slot": request.slot}))
    if not rows or rows[0]["sequence"] < request.sequence:
        return NOTHING
    text = _check(rows[0], naming)
    try:
        document = json.loads(text, object_hook=partial(_record, tx, ctx))
    except NotFound as gone:
        raise Conflict(f"{naming.name} was carried out; since then {gone.message}", cause=_NOT_KEPT) from None
    answer = operations()[naming.name].read_answer(arguments, document)
    if naming.name != "claim":
        return answer
    now, _ = tx.clock()
    return [grant for grant in answer if is_live(grant.lease, now)]


_NOT_KEPT: Final = ConflictReason.ANSWER_NOT_KEPT


def _check(row: Row, naming: Naming) -> str:
    """The text of a stored answer. Raises Conflict if it belongs to another call or was too large to be stored."""
    request = naming.request
    asked, found = (request.sequence, naming.name, request.body), (row["sequence"], row["operation"], row["body"])
    if asked != found:
        raise Conflict(
            f"the request id of this call of {naming.name} was used for another call; give each call its own",
            cause=ConflictReason.REQUEST_REUSED,
        )
    if row["answer"] is None:
        raise Conflict(
            f"{naming.name} was carried out, and its answer was larger than {MAX_ANSWER_BYTES:,} bytes, too large to "
            "be kept: read the records instead",
            cause=_NOT_KEPT,
        )
    text: str = row["answer"]
    return text


def _record(tx: Tx, ctx: Context, found: dict[str, Any]) -> object:
    """The record that is stored by its id, as it is now. Any other JSON object is returned unchanged."""
    if _BY_ID not in found or len(found) > 1:
        return found
    name, record_id = found[_BY_ID]
    kind = _KINDS[name]
    record = _grant(tx, ctx, record_id) if kind is Grant else get(tx, ctx, kind, record_id)
    return to_document(record)["value"]


def _grant(tx: Tx, ctx: Context, lease_id: str) -> Grant:
    """The grant of this lease, made from the records as they are now."""
    lease = get(tx, ctx, Lease, lease_id)
    profile = get(tx, ctx, Profile, lease.profile_id)
    lane = get(tx, ctx, Lane, lease.profile_id)
    (settings,) = tx.read(("fleet_settings", {}))
    facts = LaneFacts(
        lane=lane,
        profile=profile,
        account=get(tx, ctx, Account, profile.account_id),
        proxy=get(tx, ctx, Proxy, profile.proxy_id) if profile.proxy_id is not None else None,
        open=[lease],
        profile_store=next((row["value"] for row in settings if row["name"] == PROFILE_STORE), None),
    )
    job = get(tx, ctx, Job, lease.job_id) if lease.job_id is not None else None
    return grant_of(facts, lease, job, newest_among(tx, [lane.profile_id]).get(lane.profile_id))
