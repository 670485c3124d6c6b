"""The store itself over HTTP: one route for each operation of the port, for remote workers (`stores/http`).

Leases of a caller are granted to `TOKEN_ID/INCARNATION`: so the server knows that a call under a lease comes from its
holder. The caller sees its own incarnations as it sent them.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from leasekeeper.core.calls import CallAttempt
from leasekeeper.core.leases import Lease
from leasekeeper.core.secrets import LeaseSecret
from leasekeeper.core.tokens import OPERATIONS, ApiToken, Needs, Reach, Scope, bound_incarnation
from leasekeeper.encryption import open_lease_secret
from leasekeeper.errors import NotAuthenticated, SecretKeyMissing
from leasekeeper.ports import Grant, HandedOver, Store, StoreInfo
from leasekeeper.service.answers import REPEATABLE, request_of
from leasekeeper.service.permissions import bind, is_housekeeper
from leasekeeper.service.routing import JSON, Body, Call, Parameter, Route
from leasekeeper.threads import run_in_thread
from leasekeeper.wire.kinds import Choice
from leasekeeper.wire.operations import ATTEMPT_HEADER, Operation, StoreCall, operations, read_call
from leasekeeper.wire.shapes import to_document


async def perform(operation: Operation, call: Call) -> Response:
    """Check, call the store, write the answer."""
    asked: StoreCall = call.body
    token = call.token
    if token is None:
        raise NotAuthenticated("the call has no token")
    await call.service.permissions.check(token, operation.name, asked.arguments)
    store = call.service.store
    if asked.request_id is None or operation.name in REPEATABLE:
        return Response(await _answer(operation, call, token, asked, store), 200, None, JSON)
    attempt = call.query.get(ATTEMPT_HEADER)
    request = request_of(token, asked.request_id, asked.sequence, call.content, attempt)
    work = partial(_answer, operation, call, token, asked, store.once(request))
    return Response(await call.service.under_way.join(request, work), 200, None, JSON)


async def _answer(operation: Operation, call: Call, token: ApiToken, asked: StoreCall, store: Store) -> bytes:
    """Call the store, and write its answer as this caller sees it."""
    arguments = bind(token, asked.arguments)
    # `wait` is answered by the server, which waits at its store for all callers together.
    target: Any = call.service.polls if operation.name == "wait" else store
    value = await getattr(target, operation.name)(**arguments)
    value = await _for_caller(call, token, operation.name, value)
    text = json.dumps(to_document(value), separators=(",", ":"))
    own = bound_incarnation(token, "")
    return text.replace(f'"incarnation":"{own}', '"incarnation":"').encode()


async def _for_caller(call: Call, token: ApiToken, name: str, value: Any) -> Any:
    """The answer as this caller may see it."""
    for grant in _grants(value):
        call.service.permissions.remember(grant.lease.lease_id, grant.lease.incarnation)
    match name:
        case "unresolved" if not is_housekeeper(token):
            own = bound_incarnation(token, "")
            return [lease for lease in value if isinstance(lease, Lease) and lease.incarnation.startswith(own)]
        case "lease_secrets":
            return [await _opened(call, secret) for secret in value]
        case "check":
            info: StoreInfo = value
            return replace(info, location="", detail=f"{info.kind} behind the server; {info.detail}")
        case _:
            return value


def _grants(value: Any) -> Iterable[Grant]:
    match value:
        case Grant():
            return [value]
        case HandedOver(grant=Grant() as grant):
            return [grant]
        case [Grant(), *_]:
            grants: list[Grant] = value
            return grants
        case _:
            return []


async def _opened(call: Call, secret: LeaseSecret) -> LeaseSecret:
    """A secret in plain, if this server has a key. Without one the caller gets it encrypted, for its own key."""
    if secret.sealed is None:
        return secret
    try:
        value = await run_in_thread(open_lease_secret, secret, call.service.config.secrets)
    except SecretKeyMissing:
        return secret
    return LeaseSecret(name=secret.name, value=value)


_ATTEMPT: Final = Parameter(
    ATTEMPT_HEADER,
    "first: this call was not sent before, which saves a read; again, the default; "
    "ask: only return the answer of an earlier attempt",
    Choice(CallAttempt),
    "header",
)


def _route(operation: Operation) -> Route:
    # What the call is about is checked by `perform`, which knows each operation's arguments.
    return Route(
        method="POST",
        path=f"/v1/store/{operation.name}",
        summary=operation.doc,
        handler=partial(perform, operation),
        needs=Needs(OPERATIONS[operation.name].scope, Reach.NOTHING),
        also=(Scope.REVIEW,) if operation.name in ("decide", "acquire") else (),
        parameters=() if operation.name in REPEATABLE else (_ATTEMPT,),
        body=Body(partial(read_call, operation), operation.schema),
        answers={"type": "object", "required": ["version", "value"]},
        tag="store",
    )


ROUTES: Final = tuple(_route(operation) for operation in operations().values())
