"""Sessions over HTTP: a leased browser for any program, as a DevTools address. See `session_views` for who may."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from starlette.requests import Request

from leasekeeper.core.failures import Reason
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.core.notes import NoteAbout
from leasekeeper.core.profiles import Profile
from leasekeeper.core.tokens import OPERATIONS, Needs, Reach, Scope, denial
from leasekeeper.core.why import explain
from leasekeeper.core.why_answer import Why
from leasekeeper.errors import AmbiguousProfile, Forbidden, InputError, Problem, UnknownAccount
from leasekeeper.runtime.session_endpoint import version_answer
from leasekeeper.runtime.session_host import HostedSession, SessionOrder
from leasekeeper.runtime.session_terms import OnDisconnect, SessionTerms
from leasekeeper.service.permissions import refuse
from leasekeeper.service.routing import Body, Call, Parameter, Route, Subject
from leasekeeper.service.session_socket import PATH as SOCKET
from leasekeeper.service.session_views import (
    OpenedSession,
    Sessions,
    SessionView,
    about_session,
    admits,
    token_in,
    used_session,
    view_of,
    view_of_run,
    visible,
)
from leasekeeper.wire.jobs import labels
from leasekeeper.wire.kinds import ID, Choice, Flag, JsonObject, Number, Problems, Text
from leasekeeper.wire.records import Alias, Field, Record

MAX_WAIT: Final = timedelta(minutes=10)
MAX_IDLE: Final = timedelta(days=1)
MAX_OPEN: Final = timedelta(days=7)
IDLE: Final = timedelta(minutes=5)
LONGEST: Final = timedelta(hours=4)
MAX_NAME: Final = 128
MAX_TEXT: Final = 2_000
MAX_OUTPUT: Final = 64 * 1024


def seconds_field(name: str, longest: timedelta, least: float, doc: str, into: str) -> Field:
    """A time span in seconds, up to the longest."""
    kind = Number(least, longest.total_seconds(), seconds=True)
    return Field(name=f"{name}_s", kind=kind, doc=doc, aliases=(Alias(f"{name}_seconds"),), into=into)


_OPEN: Final = Record(
    [
        Field(name="profile_id", kind=ID, doc="the profile"),
        Field(name="account_id", kind=ID, doc="or the account, if it has one profile"),
        Field(name="pool", kind=ID, doc="or any free profile of this pool"),
        labels("profile"),
        seconds_field(
            "wait", MAX_WAIT, 0, "how long to wait for the profile; 0: answer 409 at once if it is busy", "wait"
        ),
        seconds_field(
            "idle_timeout", MAX_IDLE, 1, "end after this time without a client; 300 if not given", "idle_timeout"
        ),
        seconds_field("max_duration", MAX_OPEN, 1, "end after this time in any case; 4 h if not given", "max_duration"),
        Field(name="on_disconnect", kind=Choice(OnDisconnect), doc="what the end of the last client means"),
        Field(name="headless", kind=Flag(), doc="false: show the browser, where its machine has a display"),
    ]
)
_STEP: Final = Record(
    [
        Field(name="step", kind=Text(f"1 to {MAX_NAME} characters", maximum=MAX_NAME), doc="its name", required=True),
        Field(name="url", kind=Text(f"1 to {MAX_TEXT} characters", maximum=MAX_TEXT), doc="where the browser is"),
        Field(name="flush", kind=Flag(), doc="false: do not write cookies to disk first"),
    ]
)


class Bracket(StrEnum):
    """Begin or end a mutating section."""

    ENTER = "enter"
    LEAVE = "leave"


class ReleasedAs(StrEnum):
    """How the work in a session ended."""

    COMPLETED = "completed"
    FAILED = "failed"


_SECTION: Final = Record(
    [
        Field(name="name", kind=Text(f"1 to {MAX_NAME} characters", maximum=MAX_NAME), doc="its name", required=True),
        Field(
            name="action", kind=Choice(Bracket), doc="enter before, leave after what cannot be undone", required=True
        ),
        Field(name="idempotent", kind=Flag(), doc="the section may be repeated without harm"),
    ]
)
_NOTE: Final = Record(
    [
        Field(
            name="text",
            kind=Text(f"1 to {MAX_TEXT} bytes of text", maximum=MAX_TEXT, lines=True),
            doc="for the people who are responsible for the profile",
            required=True,
        ),
        Field(name="about", kind=Choice(NoteAbout), doc="profile if left out"),
    ]
)
_RELEASE: Final = Record(
    [
        Field(name="outcome", kind=Choice(ReleasedAs), doc="completed, unless there is a reason"),
        Field(name="reason", kind=Text(f"1 to {MAX_NAME} characters", maximum=MAX_NAME), doc="a failure's code"),
        Field(
            name="message",
            kind=Text(f"1 to {MAX_TEXT} bytes of text", maximum=MAX_TEXT, lines=True),
            doc="what happened, for people",
        ),
        Field(name="output", kind=JsonObject(MAX_OUTPUT, 32), doc="the result, if it is completed"),
    ]
)


def _body(record: Record, refusal: str, *, required: bool = True) -> Body:
    def read(data: object) -> dict[str, Any]:
        problems = Problems()
        values = record.read(data, "", problems)
        problems.raise_any(refusal)
        return values

    return Body(read, record.schema, required=required)


def _order_of(data: object) -> dict[str, Any]:
    values: dict[str, Any] = _body(_OPEN, "no session was opened").read(data)
    named = [name for name in ("profile_id", "account_id", "pool") if values.get(name)]
    if len(named) != 1 or (values.get("labels") and named != ["pool"]):
        wrong = "name a profile_id, an account_id or a pool, one of them; labels go with a pool"
        raise InputError("no session was opened", [Problem("profile_id", wrong)])
    return values


async def about_order(call: Call) -> Subject:
    """What the order is about: a profile's account and pool, an account, or any profile of a pool."""
    body: Mapping[str, Any] = call.body
    if body.get("pool"):
        return Subject(pool=body["pool"])
    if body.get("account_id"):
        body["profile_id"] = await _only_profile(call, body["account_id"])  # type: ignore[index]  # our own dict
    place = await call.service.permissions.place_of(Profile, body["profile_id"])
    return Subject(account=place.account, pool=place.pool)


async def _only_profile(call: Call, account: str) -> str:
    found = (await call.service.store.find(Profile, {"account_id": account}, limit=20)).items
    # Only callers that may use the account learn which profiles it has.
    pools: list[str | None] = [*(each.pool for each in found)] or [None]
    for pool in pools:
        if call.token is not None:
            refuse(denial(call.token, OPERATIONS["acquire"], account=account, pool=pool))
    if not found:
        raise UnknownAccount(f"account {account} has no profile; no session was opened", account_id=account)
    if len(found) > 1:
        names = tuple(str(each.profile_id) for each in found)
        raise AmbiguousProfile(
            f"account {account} has several profiles, name one: {', '.join(names)}",
            account_id=account,
            profile_ids=names,
        )
    return found[0].profile_id


async def open_one(call: Call) -> OpenedSession:
    """Open a session. If the caller disconnects before the answer, the session is closed again."""
    if call.token is None:
        raise Forbidden("the call has no token")
    body = call.body
    pool = body.get("pool")
    order = SessionOrder(
        owner=call.token.token_id,
        profile_id=body.get("profile_id"),
        choice=ProfileChoice(pool=pool, labels=body.get("labels") or {}) if pool else None,
        wait=body.get("wait") or timedelta(0),
        terms=SessionTerms(
            idle_timeout=body.get("idle_timeout") or IDLE,
            max_duration=body.get("max_duration") or LONGEST,
            on_disconnect=body.get("on_disconnect") or OnDisconnect.KEEP,
            headless=body.get("headless", True),
        ),
    )
    session, text = await _while_connected(call.request, call.service.sessions.open(order))
    call.headers["Cache-Control"] = "no-store"
    return OpenedSession(
        session=view_of(session),
        session_id=session.session_id,
        token=session.run.lease.token,
        expires_at=session.expires_at,
        live_view_url=live_view_url(call.request, session.session_id),
        cdp_url=cdp_url(call.request, session.session_id, text),
        session_token=text,
    )


async def _while_connected(
    request: Request, opening: Awaitable[tuple[HostedSession, str]]
) -> tuple[HostedSession, str]:
    work = asyncio.ensure_future(opening)
    gone = asyncio.ensure_future(until_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise InputError("the caller left before its session was open; none is left")
    finally:
        gone.cancel()
        work.cancel()  # an ended one stays as it is
        await asyncio.gather(work, gone, return_exceptions=True)


async def until_disconnected(request: Request) -> None:
    """Wait until the caller disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def cdp_url(request: Request, session_id: str, text: str) -> str:
    """The address of a session as this caller reaches the server."""
    secure = request.url.scheme == "https"
    return f"{'wss' if secure else 'ws'}://{_place(request)}/v1/sessions/{session_id}/cdp?token={text}"


def live_view_url(request: Request, run_id: str) -> str:
    """The page that shows the browser of a run, for people who sign in."""
    return f"{request.url.scheme}://{_place(request)}/ui/runs/{run_id}/live"


def _place(request: Request) -> str:
    return f"{request.headers.get('host', '')}{request.scope.get('root_path', '')}"


async def list_all(call: Call) -> Sessions:
    return Sessions(items=visible(call.service, call.token))


async def show(call: Call) -> SessionView:
    return view_of(call.record) if isinstance(call.record, HostedSession) else view_of_run(call.record)


async def why(call: Call) -> Why:
    shown = await show(call)
    return explain(await call.service.store.why(profile_id=shown.profile_id))


async def checkpoint(call: Call) -> SessionView:
    body = call.body
    async with _using(call) as session:
        await session.run.checkpoint(body["step"], flush=body.get("flush", True), url=body.get("url"))
    return view_of(session)


async def mutating(call: Call) -> SessionView:
    async with _using(call) as session:
        if call.body["action"] is Bracket.ENTER:
            await session.run.enter(call.body["name"], idempotent=bool(call.body.get("idempotent")))
        else:
            await session.run.leave(call.body["name"])
    return view_of(session)


async def note(call: Call) -> SessionView:
    async with _using(call) as session:
        await session.run.note(call.body["text"], call.body.get("about") or NoteAbout.PROFILE)
    return view_of(session)


async def release(call: Call) -> SessionView:
    """End a session, and answer once its browser is closed and its run settled. A second call changes nothing."""
    session = await used_session(call)
    body = call.body or {}
    reason: str | None = body.get("reason")
    if reason is not None and body.get("outcome") is ReleasedAs.COMPLETED:
        raise InputError("nothing was released", [Problem("reason", "is for an outcome that is not completed")])
    if reason is None and body.get("outcome") is ReleasedAs.FAILED:
        reason = Reason.TASK_ERROR
    session.run.release(reason, body.get("message") or "", output=body.get("output"))
    await session.run.ended()
    return view_of(session)


async def _live(call: Call) -> HostedSession:
    session = await used_session(call)
    session.check()
    return session


@asynccontextmanager
async def _using(call: Call) -> AsyncIterator[HostedSession]:
    """The session that a call uses. A failure because the session ended meanwhile becomes SessionEnded."""
    session = await _live(call)
    try:
        yield session
    except Exception:
        session.check()
        raise


async def version(call: Call) -> dict[str, str]:
    """Where the WebSocket is: the first call of DevTools clients that get an http URL."""
    session = await _live(call)
    text = token_in(call.request.headers, call.request.query_params)
    if not session.proves(text):
        raise Forbidden("only the session's own token opens its browser: send that one")
    return version_answer(cdp_url(call.request, session.session_id, text))


async def about_version(call: Call) -> Subject:
    """Without a session in the path, an API token does not say which session is meant."""
    return await about_session(call) if "id" in call.path else Subject()


async def no_upgrade(call: Call) -> None:
    """Answer a plain GET of the WebSocket's URL."""
    session = await _live(call)
    raise InputError(f"session {session.session_id}: this is a WebSocket; connect a DevTools client to it")


_TOKEN: Final = Parameter(
    "token",
    "the session's token, for clients that send no headers",
    Text("the text of a session's token", maximum=512, minimum=0),
)
_VERSION_SCHEMA: Final = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in version_answer("")},
}
_USE: Final = Needs(Scope.WORK)


def _used(
    path: str, summary: str, handler: Callable[[Call], Awaitable[Any]], record: Record, *, required: bool = True
) -> Route:
    return Route(
        method="POST",
        path=f"/v1/sessions/{{id}}/{path}",
        summary=summary,
        handler=handler,
        needs=_USE,
        also=(Scope.OPERATE,),
        admits=admits,
        about=about_session,
        body=_body(record, "nothing was done", required=required),
        answers=SessionView,
        tag="sessions",
    )


def _version_route(path: str) -> Route:
    return Route(
        method="GET",
        path=path,
        summary="Where the WebSocket of a session is, as DevTools clients ask. Needs the session's token.",
        handler=version,
        needs=Needs(Scope.READ),
        admits=admits,
        about=about_version,
        parameters=(_TOKEN,),
        answers=_VERSION_SCHEMA,
        tag="sessions",
    )


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/sessions",
        summary="Lease a profile and open its browser, for any program that speaks DevTools.",
        handler=open_one,
        needs=OPERATIONS["acquire"],
        about=about_order,
        body=Body(_order_of, _OPEN.schema),
        answers=OpenedSession,
        status=201,
        tag="sessions",
    ),
    Route(
        method="GET",
        path="/v1/sessions",
        summary="Sessions that this server runs, and the last that it ran. All are in the list of runs.",
        handler=list_all,
        # Each session has its own account: `visible` checks it.
        needs=Needs(Scope.READ, Reach.NOTHING),
        answers=Sessions,
        tag="sessions",
    ),
    Route(
        method="GET",
        path="/v1/sessions/{id}",
        summary="One session: open, closing or ended, and how it ended.",
        handler=show,
        needs=Needs(Scope.READ),
        admits=admits,
        about=about_session,
        answers=SessionView,
        tag="sessions",
    ),
    Route(
        method="GET",
        path="/v1/sessions/{id}/why",
        summary="Why the session's profile is as it is, what happens next, what a person can do.",
        handler=why,
        needs=OPERATIONS["why"],
        admits=admits,
        about=about_session,
        answers=Why,
        tag="sessions",
    ),
    _used("checkpoint", "Record a safe step, with the session's cookies on disk.", checkpoint, _STEP),
    _used("mutating", "Enter or leave a section that changes something for good.", mutating, _SECTION),
    _used("note", "Write a note on the profile, or on its account.", note, _NOTE),
    _used("release", "Close the browser with proof, save evidence, release.", release, _RELEASE, required=False),
    Route(
        method="GET",
        path=SOCKET,
        summary="A WebSocket that speaks DevTools: the browser. Needs the session's token.",
        handler=no_upgrade,
        needs=Needs(Scope.READ),
        admits=admits,
        about=about_session,
        parameters=(_TOKEN,),
        status=101,
        tag="sessions",
    ),
    *map(_version_route, (f"{SOCKET}/json/version", f"{SOCKET}/json/version/", "/json/version", "/json/version/")),
)
