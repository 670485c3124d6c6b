"""Sessions as callers see them: the answers, the session that a call means, and who may use it.

A session's own token is enough for everything about that session, for as long as the API token that opened it is valid.
Among API tokens, that one may use it with scope `work`, and so may those with scope `operate`; tokens that may read its
account see it.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers, QueryParams

from leasekeeper.core.leases import Purpose, RunRecord, RunResult
from leasekeeper.core.tokens import ApiToken, Needs, Reach, Scope, denial, has_scope
from leasekeeper.errors import LeasekeeperError, LeaseOfAnotherToken, NotAuthenticated, NotFound
from leasekeeper.runtime.session_host import TOKEN_PREFIX, HostedSession, ended
from leasekeeper.runtime.session_terms import OnDisconnect
from leasekeeper.service.permissions import refuse
from leasekeeper.service.routing import Call, Subject

if TYPE_CHECKING:
    from leasekeeper.service.state import Service


NOT_HERE: Final = "this server does not run it, or does not any more"


class SessionState(StrEnum):
    """`closing`: it was released or has ended, and the browser is being closed."""

    OPEN = "open"
    CLOSING = "closing"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """One session. Its id is that of its run. `reason` and `message` say how it ended; no reason: completed.

    `asks` is what it waits for a person to do.
    """

    session_id: str
    state: SessionState
    profile_id: str
    account_id: str
    lease_id: str
    token: int
    worker_id: str
    opened_at: datetime
    expires_at: datetime | None = None
    clients: int = 0
    idle_timeout: timedelta | None = None
    max_duration: timedelta | None = None
    on_disconnect: OnDisconnect | None = None
    asks: str | None = None
    reason: str | None = None
    message: str = ""
    profile_state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Sessions of this server, the open ones first."""

    items: list[SessionView]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedSession:
    """A new session. `cdp_url` and `session_token` are shown this once: each of them gives full control of the browser.

    `live_view_url` is a page that shows the browser to people who sign in; it holds no secret.
    """

    session: SessionView
    session_id: str
    token: int
    expires_at: datetime | None
    live_view_url: str
    cdp_url: str = field(repr=False)
    session_token: str = field(repr=False)


def view_of(session: HostedSession) -> SessionView:
    """A session that this process runs, or ran."""
    run, lease, end = session.run, session.run.lease, session.run.end
    state = SessionState.ENDED if run.over else SessionState.CLOSING if session.over else SessionState.OPEN
    return SessionView(
        session_id=session.session_id,
        state=state,
        profile_id=lease.profile_id,
        account_id=lease.account_id,
        lease_id=lease.lease_id,
        token=lease.token,
        worker_id=lease.worker_id,
        opened_at=lease.acquired_at,
        expires_at=session.expires_at,
        clients=run.clients,
        idle_timeout=run.terms.idle_timeout,
        max_duration=run.terms.max_duration,
        on_disconnect=run.terms.on_disconnect,
        asks=session.asks,
        reason=end.reason if end else None,
        message=end.message if end else run.lost or "",
        profile_state=run.profile_state,
    )


def view_of_run(run: RunRecord) -> SessionView:
    """A session that this process does not know: another or an earlier process ran it."""
    going_on = run.result is RunResult.STARTED and run.ended_at is None
    return SessionView(
        session_id=run.run_id,
        state=SessionState.OPEN if going_on else SessionState.ENDED,
        profile_id=run.profile_id,
        account_id=run.account_id,
        lease_id=run.lease_id,
        token=run.token,
        worker_id=run.worker_id,
        opened_at=run.acquired_at,
        reason=run.stop_reason,
        message=run.message,
    )


def token_in(headers: Headers, query: QueryParams) -> str:
    """The session token of a call: in the query, for clients that cannot send headers, or as Bearer."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    return query.get("token") or (text.strip() if scheme.lower() == "bearer" else "")


async def admits(call: Call) -> bool:
    """Whether the call has the token of the session that it names, or of any session if its path names none.

    Raises SessionEnded for a session token without a known session: it was forgotten, or ended with an earlier process.
    """
    text = token_in(call.request.headers, call.request.query_params)
    session = call.service.sessions.by_token(text)
    named = call.path.get("id")
    if session is None and named and text.startswith(TOKEN_PREFIX) and call.service.sessions.get(named) is None:
        raise await _not_known(call.service, named, text)
    if session is None or call.path.get("id", session.session_id) != session.session_id:
        return False
    await call.service.auth.check_active(session.owner)
    call.record = session
    return True


async def _not_known(service: "Service", session_id: str, text: str) -> LeasekeeperError:
    """The error for an unknown session token: its worker is not connected, the session has ended, or it never existed.

    It says no more than that, unless this was the token of a session whose worker has disconnected.
    """
    with suppress(NotFound):
        found = await find_session(service, session_id)
        if isinstance(found, RunRecord):
            away = await service.sessions.away(found)
            if away is not None:
                return away
            if service.sessions.left_with(session_id, text):
                return _not_here(found)
    return ended(session_id, NOT_HERE)


async def find_session(service: "Service", session_id: str) -> HostedSession | RunRecord:
    """The session, or its run if this process does not know it. Raises NotFound."""
    known = service.sessions.get(session_id)
    if known is not None:
        return known
    run = await service.store.get(RunRecord, session_id)
    if run.purpose is not Purpose.SESSION:
        raise NotFound(f"there is no session {session_id}", what="session", id=session_id)
    return run


async def about_session(call: Call) -> Subject:
    """A session is about its profile's account and pool."""
    found = await find_session(call.service, call.path["id"])
    if isinstance(found, HostedSession):
        lease = found.run.lease
        return Subject(account=lease.account_id, pool=lease.pool, record=found)
    place = await call.service.permissions.place(found)
    return Subject(account=place.account, pool=place.pool, record=found)


async def used_session(call: Call) -> HostedSession:
    """The session that a call wants to use. Raises LeaseOfAnotherToken, or SessionEnded with the reason."""
    found = call.record
    token = call.token
    if isinstance(found, RunRecord):
        raise await call.service.sessions.away(found) or _not_here(found)
    if not isinstance(found, HostedSession):
        raise NotFound("the call names no session", what="session")
    if token is not None and not (found.owner == token.token_id or has_scope(token, Scope.OPERATE)):
        raise LeaseOfAnotherToken(
            f"session {found.session_id} was opened with another token: use that one, or the session's own",
            token_id=token.token_id,
        )
    return found


def _not_here(run: RunRecord) -> LeasekeeperError:
    why = f"{run.stop_reason}: {run.message}" if run.stop_reason else run.message or run.result.value
    if run.ended_at is None:
        why = "the process that ran its browser is gone"
    return ended(run.run_id, why, reason=run.stop_reason, lease_id=run.lease_id, profile_id=run.profile_id)


async def admitted(service: "Service", session_id: str, text: str) -> HostedSession:
    """The session of this id, if the text is its token. Raises NotAuthenticated, NotFound or SessionEnded."""
    known = service.sessions.get(session_id)
    if known is not None and known.proves(text):
        await service.auth.check_active(known.owner)
        known.check()
        return known
    if known is not None or not text:
        raise NotAuthenticated("that is not the token of this session: use its whole cdp_url")
    found = await find_session(service, session_id)
    if isinstance(found, RunRecord):
        raise await _not_known(service, session_id, text)
    raise NotAuthenticated("that is not the token of this session: use its whole cdp_url")


def visible(service: "Service", token: ApiToken | None) -> list[SessionView]:
    """The sessions that a token may see."""
    needs = Needs(Scope.READ, Reach.TARGET)
    return [
        view_of(each)
        for each in service.sessions.sessions
        if token is not None
        and denial(token, needs, account=each.run.lease.account_id, pool=each.run.lease.pool) is None
    ]


def check_readable(call: Call, account: str, pool: str | None) -> None:
    """Raise unless the call's token may read this account."""
    if call.token is not None:
        refuse(denial(call.token, Needs(Scope.READ, Reach.TARGET), account=account, pool=pool))
