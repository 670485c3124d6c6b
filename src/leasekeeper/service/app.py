"""The ASGI application, made of the route table: authenticate, read the input, call the handler, write the answer;
errors become problems. The routes themselves are in `routes/`.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as Mounted
from starlette.types import ASGIApp, Receive, Scope, Send

from leasekeeper.core.tokens import Needs, Reach, denial, has_scope
from leasekeeper.errors import (
    BodyTooLarge,
    InputError,
    LeasekeeperError,
    MethodNotAllowed,
    NotFound,
    Problem,
)
from leasekeeper.local_tokens import is_loopback
from leasekeeper.service.auth import bearer
from leasekeeper.service.guards import Guards
from leasekeeper.service.live_socket import live_socket_routes
from leasekeeper.service.mcp import PATH as AGENTS
from leasekeeper.service.pages.table import page_routes
from leasekeeper.service.permissions import refuse
from leasekeeper.service.problems import bug_response, problem_response
from leasekeeper.service.routes import ROUTES
from leasekeeper.service.routing import JSON, Call, Route
from leasekeeper.service.session_socket import socket_routes
from leasekeeper.service.state import Service
from leasekeeper.service.worker_socket import worker_socket_routes
from leasekeeper.wire import encode
from leasekeeper.wire.jobs import load_json
from leasekeeper.wire.kinds import Problems

MAX_BODY_BYTES: Final = 64 * 1024**2
_Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(service: Service, routes: Iterable[Route] = ROUTES) -> ASGIApp:
    """The application over one service. Run `service.running()` around it."""
    table = tuple(routes)
    endpoints = {path: _endpoint(service, [row for row in table if row.path == path]) for path in _paths(table)}
    app = Starlette(
        routes=[
            *(_mounted(path, endpoint) for path, endpoint in endpoints.items()),
            *socket_routes(service),
            *live_socket_routes(service),
            *worker_socket_routes(service),
            Mounted(AGENTS, service.agents),
            *page_routes(service),
        ],
        exception_handlers={HTTPException: _no_such_path},
    )
    guarded = Guards(
        _by_whole_path(endpoints, app), service.hosts, knows=service.auth.knows, behind_proxy=service.behind_proxy
    )
    service.agents.app = guarded
    return guarded


def _paths(table: Iterable[Route]) -> list[str]:
    """Each path once. Paths without parameters come first: `/v1/jobs/search` must not be read as a job id."""
    return sorted(dict.fromkeys(row.path for row in table), key=lambda path: path.count("{"))


def _by_whole_path(endpoints: Mapping[str, _Endpoint], others: ASGIApp) -> ASGIApp:
    """Look up paths without parameters in a dict: workers call these, and the table is long."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""
        endpoint = endpoints.get(path)
        if endpoint is None or "{" in path:
            await others(scope, receive, send)
            return
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)

    return app


def _endpoint(service: Service, rows: list[Route]) -> _Endpoint:
    """One path with all its methods. Any other method is refused, with a list of the allowed ones."""
    by_method = {row.method: row for row in rows}
    allowed = tuple(sorted(by_method))

    async def endpoint(request: Request) -> Response:
        row = by_method.get("GET" if request.method == "HEAD" else request.method)
        try:
            if row is None:
                raise MethodNotAllowed(f"{request.url.path} does not know {request.method}", allowed=allowed)
            return await answer(service, row, request)
        except LeasekeeperError as error:
            return problem_response(error)
        except Exception as error:  # noqa: BLE001 - whatever happens, the caller gets a problem and the log the reason
            return bug_response(error)

    return endpoint


def _mounted(path: str, endpoint: _Endpoint) -> BaseRoute:
    # Starlette would refuse an unknown method itself, and not with a problem.
    return Mounted(path, endpoint, methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])


async def answer(service: Service, row: Route, request: Request) -> Response:
    """Authenticate, read, authorize, call the handler, write. The body is not read before the caller is known."""
    call = Call(request=request, service=service)
    if row.needs is not None and not await _needs_no_token(service, row, call):
        call.token = await service.auth.identify(bearer(request.headers.get("authorization")))
        # Without the scope nothing is read for the caller.
        if not any(has_scope(call.token, scope) for scope in row.also):
            refuse(denial(call.token, Needs(row.needs.scope, Reach.NOTHING)))
    call.query = read_parameters(row, request)
    call.body = await _read_body(row, call)
    if row.needs is not None and call.token is not None:
        subject = await row.about(call)
        call.record = subject.record
        needs = replace(row.needs, scope=call.token.scopes[0]) if row.also else row.needs
        refuse(denial(call.token, needs, account=subject.account, pool=subject.pool))
    value = await row.handler(call)
    return value if isinstance(value, Response) else write(row, call, value)


async def _needs_no_token(service: Service, row: Route, call: Call) -> bool:
    """Whether no API token is needed: the call has another proof that the row accepts, or the caller is on this machine
    and a setting lets such callers in without one.
    """
    if row.admits is not None and await row.admits(call):
        return True
    client = call.request.client
    local = client is not None and is_loopback(client.host)
    return row.open_to_this_machine and service.config.metrics_open and local


def read_parameters(row: Route, request: Request) -> dict[str, Any]:
    """The declared values of query and headers. Raises InputError that names every wrong or unknown one."""
    problems = Problems()
    query = request.query_params
    declared = {each.name: each for each in row.parameters if each.place == "query"}
    for name in query:
        if name not in declared:
            known = f"there are: {', '.join(declared)}" if declared else "this call takes none"
            problems.add(name, f"no such parameter; {known}")
        elif len(query.getlist(name)) > 1:
            problems.add(name, "is given twice")
    found: dict[str, Any] = {}
    for each in row.parameters:
        raw = query.get(each.name) if each.place == "query" else request.headers.get(each.name)
        if raw is not None:
            found[each.name] = each.kind.read(raw, each.name, problems)
    problems.raise_any("the call is not acceptable")
    return found


async def _read_body(row: Route, call: Call) -> Any:
    if row.body is None or row.method in ("GET", "HEAD"):
        return None
    text = call.content = await body_bytes(call.request, MAX_BODY_BYTES)
    if not text:
        if row.body.required:
            raise InputError("the call has no body", [Problem("body", "must be JSON")])
        return None
    return row.body.read(load_json(text))


async def body_bytes(request: Request, maximum: int) -> bytes:
    """The whole body, up to a limit. Raises BodyTooLarge before more than that is in memory."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > maximum:
            raise BodyTooLarge(f"the body is larger than {maximum:,} bytes: send it in parts", max_bytes=maximum)
        chunks.append(chunk)
    return b"".join(chunks)


def write(row: Route, call: Call, value: object) -> Response:
    """The value as JSON, or no content."""
    status = call.status or row.status
    if row.answers is None:
        return Response(None, 204 if status == 200 else status, call.headers)
    # Escaped: half of a surrogate pair, which a payload may hold, has no form in UTF-8.
    text = json.dumps(encode(value, payload=row.payload), separators=(",", ":"))
    return Response(text, status, call.headers, JSON)


async def _no_such_path(request: Request, error: Exception) -> Response:
    """What Starlette itself refuses: unknown paths."""
    if isinstance(error, HTTPException) and error.status_code != 404:
        return bug_response(error)
    return problem_response(NotFound(f"there is nothing at {request.url.path}", what="path", id=request.url.path))
