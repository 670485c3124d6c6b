"""The program of a session asks for a person, and continues when one has answered."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, assert_never

from leasekeeper.app import HUMAN_TIMEOUT
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.tokens import Needs, Scope
from leasekeeper.runtime.human_requests import AskEnd, AskState, SessionAsk
from leasekeeper.runtime.remote_session import RemoteAsk, RemoteRun
from leasekeeper.runtime.session_host import HostedSession, ended
from leasekeeper.service.routes.sessions import (
    MAX_TEXT,
    MAX_WAIT,
    cdp_url,
    live_view_url,
    seconds_field,
    until_disconnected,
)
from leasekeeper.service.routing import Body, Call, Route
from leasekeeper.service.session_views import about_session, admits, used_session
from leasekeeper.wire.kinds import Problems, Text
from leasekeeper.wire.records import Field, Record

MAX_TIMEOUT: Final = timedelta(days=1)


_ASK: Final = Record(
    [
        Field(
            name="message",
            kind=Text(f"1 to {MAX_TEXT} bytes of text", maximum=MAX_TEXT, lines=True),
            doc="what the person should do; left out: the answer to what was asked before",
        ),
        seconds_field(
            "timeout", MAX_TIMEOUT, 1, "stop waiting for a person after this time; 3600 if not given", "timeout"
        ),
        seconds_field("wait", MAX_WAIT, 0, "answer this call after this time at the latest; 0: at once", "wait"),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanRequest:
    """The outcome of asking for a person. `by`, `note` and `outcome` are the person's; `next` says what to do.

    `session_id` is the session to use from now on. `cdp_url` and `session_token` are given if it is a new one: the
    person took the browser and handed it back.
    """

    state: AskState
    session_id: str
    asked: str
    next: str
    live_view_url: str
    by: str = ""
    note: str = ""
    outcome: str = ""
    cdp_url: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


def _read(data: object) -> dict[str, Any]:
    problems = Problems()
    values: dict[str, Any] = _ASK.read(data, "", problems)
    problems.raise_any("nobody was asked")
    return values


async def request_human(call: Call) -> HumanRequest:
    """Ask, or wait for the answer to an earlier question. A caller that disconnects withdraws nothing."""
    session = await used_session(call)
    await _check_not_gone(call, session)
    body = call.body or {}
    ask = await _ask(call, session, body)
    call.headers["Cache-Control"] = "no-store"
    return _view(call, session, ask, await _end(call, ask, body.get("wait") or timedelta(0)))


async def _check_not_gone(call: Call, session: HostedSession) -> None:
    """Raise SessionEnded for a session that was taken, if its worker is not connected and the browser is closed."""
    if not (isinstance(session.run, RemoteRun) and session.run.away):
        return
    lease = session.run.lease
    newest = (await call.service.store.find(RunRecord, {"profile_id": lease.profile_id}, limit=1)).items
    if newest and newest[0].ended_at is not None:
        why = f"its browser is closed, and worker {lease.worker_id}, which knows what a person said, is not connected"
        raise ended(session.session_id, why, lease_id=lease.lease_id, profile_id=lease.profile_id)


async def _ask(call: Call, session: HostedSession, body: dict[str, Any]) -> SessionAsk | RemoteAsk:
    if body.get("message"):
        try:
            timeout = body.get("timeout") or HUMAN_TIMEOUT
            return await call.service.sessions.request_human(session, body["message"], timeout)
        except Exception:
            session.check()
            raise
    return call.service.sessions.asked(session)


async def _end(call: Call, ask: SessionAsk | RemoteAsk, wait: timedelta) -> AskEnd | None:
    ending = asyncio.ensure_future(ask.ended(wait.total_seconds()))
    gone = asyncio.ensure_future(until_disconnected(call.request))
    try:
        done, _ = await asyncio.wait({ending, gone}, return_when=asyncio.FIRST_COMPLETED)
        return ending.result() if ending in done else ask.end
    finally:
        gone.cancel()
        ending.cancel()
        await asyncio.gather(ending, gone, return_exceptions=True)


def _view(call: Call, asker: HostedSession, ask: SessionAsk | RemoteAsk, end: AskEnd | None) -> HumanRequest:
    answer = end.answer if end is not None else None
    session_id = asker.session_id if answer is None else ask.session.session_id
    text = end.text if end is not None else None
    return HumanRequest(
        state=AskState.WAITING if end is None else end.state,
        session_id=session_id,
        asked=ask.what,
        next=_next(end),
        live_view_url=live_view_url(call.request, ask.session.session_id),
        by=answer.by if answer is not None else "",
        note=answer.note if answer is not None else "",
        outcome=answer.outcome if answer is not None else "",
        cdp_url=None if text is None else cdp_url(call.request, session_id, text),
        session_token=text,
    )


def _next(end: AskEnd | None) -> str:
    state = AskState.WAITING if end is None else end.state
    match state:
        case AskState.WAITING:
            return "nobody has answered yet: do not touch the browser, ask again without a message"
        case AskState.ANSWERED if end is not None and end.text is not None:
            return "a person worked in the browser: connect to cdp_url, and use this session_id from now on"
        case AskState.ANSWERED:
            return "go on in the same session, with the cdp_url that you have"
        case AskState.NOBODY_CAME:
            return "nobody came, the session is still open: go on without a person, or release it with a reason"
        case AskState.OVER:
            return f"the session is over: {end.why if end is not None else ''}. Open another session"
    assert_never(state)


ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/sessions/{id}/request-human",
        summary="Ask for a person in a review, and wait for the answer. The session stays open.",
        handler=request_human,
        needs=Needs(Scope.WORK),
        also=(Scope.OPERATE,),
        admits=admits,
        about=about_session,
        body=Body(_read, _ASK.schema, required=False),
        answers=HumanRequest,
        tag="sessions",
    ),
)
