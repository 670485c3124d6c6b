"""The table of pages, and how a request is handled: sign-in, the view, and error pages."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from leasekeeper.core.tokens import ApiToken, Scope, has_scope
from leasekeeper.errors import AccessDenied, LeasekeeperError, MethodNotAllowed, NotAuthenticated, NotFound
from leasekeeper.service.guards import SIGN_IN
from leasekeeper.service.one_time_links import ENTER
from leasekeeper.service.pages import (
    actions,
    activity,
    conflicts,
    dead_letters,
    evidence,
    fleet,
    inbox,
    kit,
    live,
    live_view,
    profile,
    queue,
    runs,
    settings,
    suggestions,
)
from leasekeeper.service.pages.rendering import HEADERS, asset, link, page, plain_page
from leasekeeper.service.pages.signing_in import (
    COOKIE,
    HOME,
    forget_cookie,
    keep,
    safe_next,
    set_cookie,
)
from leasekeeper.service.pages.visit import CHOICES, Visit, read_form
from leasekeeper.service.problems import bug_response, status_of
from leasekeeper.service.state import Service

ASSET_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
FOR_EVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Row:
    """One page, or one form that it sends."""

    method: str
    path: str
    view: Callable[[Visit], Awaitable[Response]]


async def only(visit: Visit) -> Response:
    """Switch to another of the accounts and pools that the token is restricted to."""
    form = await visit.form()
    response = RedirectResponse(_root(visit.request) + safe_next(form.get("back")), 303)
    for field, (_, cookie) in CHOICES.items():
        if field in form:
            keep(visit.request, response, cookie, form[field])
    return response


TABLE: Final = (
    Row("GET", "/ui/", fleet.view),
    Row("GET", "/ui/profiles/{id}", profile.view),
    Row("POST", "/ui/profiles/{id}/open", live_view.open_session),
    Row("GET", "/ui/queue", queue.view),
    Row("GET", "/ui/queue/new", queue.new_job),
    Row("POST", "/ui/queue/new", queue.submit_job),
    Row("GET", "/ui/jobs/{id}", queue.job),
    Row("GET", "/ui/runs", runs.view),
    Row("GET", "/ui/runs/{run_id}", runs.one),
    Row("GET", "/ui/runs/{run_id}/live", live_view.view),
    Row("POST", "/ui/runs/{run_id}/live/end", live_view.end_session),
    Row("POST", "/ui/runs/{run_id}/take", live_view.take),
    Row("POST", "/ui/runs/{run_id}/hand-back", live_view.hand_back),
    Row("POST", "/ui/runs/{run_id}/release", live_view.release),
    Row("GET", "/ui/runs/{run_id}/evidence/{name}", evidence.file),
    Row("GET", "/ui/reviews", inbox.view),
    Row("GET", "/ui/dead-letters", dead_letters.view),
    Row("GET", "/ui/conflicts", conflicts.view),
    Row("GET", "/ui/activity", activity.view),
    Row("GET", "/ui/settings", settings.view),
    Row("POST", "/ui/settings/tokens", settings.create_token),
    Row("POST", "/ui/settings/endpoints", settings.add_endpoint),
    Row("GET", "/ui/kit", kit.view),
    Row("GET", "/ui/live", live.view),
    Row("GET", "/ui/suggest", suggestions.view),
    Row("POST", "/ui/only", only),
    Row("POST", "/ui/decide", actions.decide),
    Row("POST", "/ui/decide-all", actions.decide_all),
)


def page_routes(service: Service) -> list[BaseRoute]:
    """The pages as routes of Starlette."""
    by_path: dict[str, dict[str, Row]] = {}
    for row in TABLE:
        by_path.setdefault(row.path, {})[row.method] = row
    mounted: list[BaseRoute] = [
        Route("/", _home, methods=["GET"]),
        Route("/ui", _home, methods=["GET"]),
        Route("/ui/assets/{name:path}", _asset, methods=["GET"]),
        Route(SIGN_IN, _signing_in(service), methods=["GET", "POST"]),
        Route(ENTER, _entering(service), methods=["GET"]),
        Route("/ui/sign-out", _sign_out, methods=["GET", "POST"]),
    ]
    ordered = sorted(by_path.items(), key=lambda item: item[0].count("{"))
    mounted += [Route(path, _endpoint(service, rows), methods=METHODS) for path, rows in ordered]
    return mounted


def _page_above(path: str) -> str:
    """The page that an address of a form belongs to: of `/ui/settings/tokens`, the settings."""
    pages = [re.compile(re.sub(r"{\w+}", "[^/]+", row.path)) for row in TABLE if row.method == "GET"]
    while path := path.rpartition("/")[0]:
        if any(page.fullmatch(path) for page in pages):
            return path
    return HOME


def _endpoint(service: Service, rows: dict[str, Row]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        row = rows.get("GET" if request.method == "HEAD" else request.method)
        if row is None and request.method in ("GET", "HEAD"):  # a form's address that was opened by hand, or again
            return RedirectResponse(link(_root(request), _page_above(_here(request))), 303)
        try:
            if row is None:
                raise MethodNotAllowed(f"{_here(request)} takes no {request.method}", allowed=tuple(rows))
            visit = Visit(request, service, await _reader(service, request.cookies.get(COOKIE, "")))
            try:
                return await row.view(visit)
            except (AccessDenied, NotFound) as error:
                # With links to the pages that the token may see.
                return await page(visit, "refused.html", status=status_of(error), title=_what(error), error=error)
        except NotAuthenticated:
            return _to_sign_in(request)
        except LeasekeeperError as error:
            return _error_page(request, error)
        except Exception as error:  # noqa: BLE001 - every error is logged
            return bug_response(error)

    return endpoint


async def _reader(service: Service, text: str) -> ApiToken:
    """The token, if it may see pages. Raises NotAuthenticated and AccessDenied."""
    token = await service.auth.identify(text)
    if not has_scope(token, Scope.READ):
        raise AccessDenied(f"token {token.token_id} ({token.name}) has no scope read, so no page can be shown")
    return token


def _what(error: LeasekeeperError) -> str:
    match error:
        case NotFound():
            return "There is no such page"
        case AccessDenied():
            return "Not with this token"
        case _:
            return "That did not work"


def _error_page(request: Request, error: LeasekeeperError) -> Response:
    signed_in = COOKIE in request.cookies
    return plain_page(
        request, "error.html", status=status_of(error), title=_what(error), error=error, signed_in=signed_in
    )


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", ""))


def _here(request: Request) -> str:
    return request.url.path.removeprefix(_root(request))


def _to_sign_in(request: Request) -> Response:
    here = f"{_here(request)}?{request.url.query}".rstrip("?")
    wanted = here if request.method == "GET" and here != HOME else ""
    return RedirectResponse(link(_root(request), SIGN_IN, next=wanted), 303)


def _signing_in(service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        if request.method == "GET":
            return plain_page(request, "sign_in.html", title="Sign in", wrong="", next=request.query_params.get("next"))
        form = dict(await read_form(request))
        text = form.get("token", "").strip()
        try:
            await _reader(service, text)
        except (NotAuthenticated, AccessDenied) as error:
            status, wrong = status_of(error), error.message
            return plain_page(
                request, "sign_in.html", status=status, title="Sign in", wrong=wrong, next=form.get("next")
            )
        except LeasekeeperError as error:
            return _error_page(request, error)
        response = RedirectResponse(_root(request) + safe_next(form.get("next")), 303)
        set_cookie(request, response, text)
        return response

    return endpoint


def _entering(service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        """An intermediate page, not a redirect: after a link from another site, browsers send the new cookie only this
        way.
        """
        text = service.links.take(request.query_params.get("code", ""))
        if text is None:
            wrong = "this link was used already, or is too old: sign in with a token, or start the server again"
            return plain_page(request, "sign_in.html", status=410, title="Sign in", wrong=wrong, next=None)
        response = plain_page(request, "entering.html", title="Signing in")
        set_cookie(request, response, text)
        return response

    return endpoint


async def _sign_out(request: Request) -> Response:
    if request.method != "POST":
        return RedirectResponse(link(_root(request), HOME), 303)
    response = RedirectResponse(link(_root(request), SIGN_IN), 303)
    forget_cookie(request, response)
    return response


async def _home(request: Request) -> Response:
    return RedirectResponse(link(_root(request), HOME), 307)


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    kind = ASSET_TYPES.get(name.rpartition(".")[2])
    try:
        if kind is None or ".." in name or name.startswith("/"):
            raise FileNotFoundError
        content = asset(name)
    except OSError:
        return _error_page(request, NotFound(f"there is nothing at {request.url.path}", what="path", id=name))
    # A shared worker gets the content security policy of its own script.
    return Response(content, 200, {**HEADERS, "Cache-Control": FOR_EVER}, kind)
