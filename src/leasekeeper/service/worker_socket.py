"""The WebSocket that a worker dials to offer its browsers: this server's end of it.

The token needs scope `work`, and has to stay valid. A session or a job's browser that a worker reports is accepted only
if its lease was granted to that very token.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from leasekeeper.core.failures import Reason
from leasekeeper.core.ids import is_id
from leasekeeper.core.tokens import ApiToken, Needs, Reach, Scope, bound_incarnation, denial
from leasekeeper.errors import InputError, LeasekeeperError, LeaseOfAnotherToken
from leasekeeper.evidence.redact import MAX_URL
from leasekeeper.runtime.remote_session import RemoteRun, SessionNews
from leasekeeper.runtime.session_endpoint import close_reason
from leasekeeper.runtime.session_host import HostedSession, SessionOrder
from leasekeeper.runtime.session_link import SILENT_SECONDS, VERSION, Link
from leasekeeper.runtime.session_offer import PATH
from leasekeeper.runtime.session_opening import NOBODY_WAITED
from leasekeeper.service.auth import bearer
from leasekeeper.service.permissions import refuse
from leasekeeper.service.problems import bug_response, problem_response
from leasekeeper.service.session_fleet import Place
from leasekeeper.service.token_watch import serve_while_valid
from leasekeeper.service.worker_browsers import WorkerBrowsers
from leasekeeper.wire.encoding import encode_in_full
from leasekeeper.wire.shapes import decode

if TYPE_CHECKING:
    from leasekeeper.service.state import Service

_LOG = logging.getLogger(__name__)

MAX_SESSIONS: Final = 1000
_WRONG: Final = 4400
_GOING_AWAY: Final = 1012


def worker_socket_routes(service: "Service") -> list[BaseRoute]:
    """The WebSocket route for workers."""
    return [WebSocketRoute(PATH, partial(serve_worker, service))]


async def serve_worker(service: "Service", socket: WebSocket) -> None:
    """Accept the worker, or refuse the upgrade with a problem; then it is one more place for sessions."""
    try:
        identify = partial(service.auth.identify, bearer(socket.headers.get("authorization")))
        token = await identify()
        refuse(denial(token, Needs(Scope.WORK, Reach.NOTHING)))
        await socket.accept()
    except LeasekeeperError as error:
        await socket.send_denial_response(problem_response(error))
        return
    except Exception as error:  # noqa: BLE001 - the worker gets a problem, and the log the reason
        await socket.send_denial_response(bug_response(error))
        return
    try:
        worker = _Worker(service, socket, token, await _first(socket))
    except LeasekeeperError as error:
        await socket.close(_WRONG, close_reason(error.message))
        return
    await serve_while_valid(identify, worker.run(), socket)


async def _first(socket: WebSocket) -> dict[str, Any]:
    """The first message, with what the worker offers."""
    try:
        async with asyncio.timeout(SILENT_SECONDS):
            message = await socket.receive()
        found = json.loads(message.get("text") or "null")
    except (TimeoutError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError("the worker did not say what it offers")
    return found


def _check(said: Mapping[str, Any], token: ApiToken) -> None:
    if said.get("version") != VERSION:
        raise InputError("worker and server are of versions that do not understand each other: upgrade the older one")
    limit, machine = said.get("limit"), said.get("machine")
    well = isinstance(limit, int) and 0 <= limit <= MAX_SESSIONS and (machine is None or isinstance(machine, str))
    if not well or not (is_id(str(said.get("worker_id"))) and is_id(str(said.get("pool")))):
        raise InputError("what the worker offers cannot be read")
    if limit:
        refuse(denial(token, Needs(Scope.WORK, Reach.POOL), pool=str(said["pool"])))


class _Worker:
    """One connected worker. Raises InputError or AccessDenied if its offer cannot be used."""

    def __init__(self, service: "Service", socket: WebSocket, token: ApiToken, said: Mapping[str, Any]) -> None:
        _check(said, token)
        self._service = service
        self._socket = socket
        self._token = token
        self._place = Place(
            offering=self,
            worker_id=said["worker_id"],
            pool=said["pool"],
            machine=said.get("machine"),
            limit=said["limit"],
        )
        self._opening = 0
        self.unwell: str | None = None
        self._adopting: set[asyncio.Task[None]] = set()
        self._link = Link(socket.send_bytes, on_news=self._hear, on_orphan=self._orphan)
        self._lives = WorkerBrowsers(service.store, token, self._place, self._link)

    @property
    def free(self) -> int:
        """How many more sessions it would open now."""
        return 0 if self.unwell else max(0, self._place.limit - len(self._place.known) - self._opening)

    async def run(self) -> None:
        """Serve it until the connection is lost."""
        fleet, place = self._service.sessions, self._place
        _LOG.info("worker %s is connected, with %d sessions for pool %s", place.worker_id, place.limit, place.pool)
        fleet.join(place)
        processing = asyncio.ensure_future(self._lives.process_reports())
        try:
            why = await self._link.run(self._next)
        finally:
            processing.cancel()
            await asyncio.gather(processing, return_exceptions=True)
            known = list(place.known.values())
            self._link.lose(f"the connection to worker {place.worker_id} was lost")
            fleet.leave(place)
            for session in known:
                if isinstance(session.run, RemoteRun):
                    session.run.wake()
        _LOG.info("worker %s is not connected any more: %s", place.worker_id, why)

    async def _next(self) -> bytes | None:
        """The next frame. A worker without any frame for too long counts as disconnected; its heartbeats come more
        often.
        """
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                message = await self._socket.receive()
        except TimeoutError:
            return None
        if message["type"] != "websocket.receive":
            return None
        return message.get("bytes") or b""

    async def close(self) -> None:
        """Disconnect the worker: this server stops."""
        self._link.lose("the server is being stopped")
        with suppress(Exception):  # it may be gone already
            await self._socket.close(_GOING_AWAY, "the server is being stopped")

    async def open(self, order: SessionOrder) -> tuple[HostedSession, str]:
        """Ask the worker to open a session."""
        self._opening += 1
        try:
            answer = await self._link.call("open", {"order": encode_in_full(order)})
            session = await self._known(decode(SessionNews, answer["news"]))
            return session, str(answer["token"])
        finally:
            self._opening -= 1

    def _hear(self, said: Mapping[str, Any]) -> None:
        if "live" in said:
            self._lives.queue_report(said["live"])
            return
        if "unwell" in said:
            self.unwell = None if said["unwell"] is None else str(said["unwell"])[:MAX_URL]
            self._service.sessions.changed()
            return
        news = decode(SessionNews, said)
        known = self._found(news)
        if known is not None:
            self._heard(known, news)
        elif not news.over or news.passed_to is not None:
            adopting = asyncio.ensure_future(self._adopt(news))
            self._adopting.add(adopting)
            adopting.add_done_callback(self._adopting.discard)

    def _found(self, news: SessionNews) -> HostedSession | None:
        """The session that the report is about, if this connection knows it."""
        run_id = news.lease.run_id
        known = self._place.known.get(run_id) or self._service.sessions.ended(run_id)
        by_us = known is not None and isinstance(known.run, RemoteRun) and known.run.comes_by(self._link)
        return known if by_us else None

    def _heard(self, known: HostedSession, news: SessionNews) -> None:
        if isinstance(known.run, RemoteRun):
            known.run.hear(news)
            self._service.sessions.moved(self._place, known)

    async def _adopt(self, news: SessionNews) -> None:
        try:
            await self._known(news)
        except LeasekeeperError as error:
            _LOG.warning("worker %s reports a session that is not its own: %s", self._place.worker_id, error)

    async def _known(self, news: SessionNews) -> HostedSession:
        """Add the session. Raises LeaseOfAnotherToken if its lease is not of this worker's token."""
        lease = news.lease
        holder = await self._service.permissions.holder(lease.lease_id)
        own = bound_incarnation(self._token, f"{news.owner}/" if news.owner else "")
        if holder is None or not holder.startswith(own):
            raise LeaseOfAnotherToken(
                f"lease {lease.lease_id} was not granted to this worker", token_id=self._token.token_id
            )
        known = self._found(news)
        if known is None:
            owner = news.owner or self._token.token_id
            known = HostedSession(RemoteRun(self._link, news, self._known), owner, news.hash)
            self._service.sessions.knows(self._place, known)
        if not known.run.over or news.over:
            self._heard(known, news)
        return known

    def _orphan(self, answer: Any) -> None:
        """A session was opened for a caller that has disconnected."""
        if isinstance(answer, dict) and "token" in answer:
            news = decode(SessionNews, answer["news"])
            RemoteRun(self._link, news, self._known).release(Reason.TASK_ERROR, NOBODY_WAITED)
