"""Offers a worker's browsers to its server, over one connection that the worker opens, so that it needs no open port.

The server requests sessions and relays their DevTools clients; the browsers, leases and limits are the worker's. The
browsers of its jobs are shown and taken over through the same connection (`live_offer`). If it is lost, only clients
and viewers are disconnected; the worker connects again and reports what it has.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, TypeVar

from leasekeeper.app import HumanAnswer
from leasekeeper.browsers.machine_name import known_machine_name
from leasekeeper.config import Config
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.failures import Reason
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.notes import NoteAbout
from leasekeeper.driver_port import ClientRefused
from leasekeeper.errors import Conflict, InputError, NotAuthenticated, StoreUnavailable
from leasekeeper.ports import Store
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.runtime.live_offer import CALLS, LiveOffer
from leasekeeper.runtime.machine import Machine
from leasekeeper.runtime.person import Person
from leasekeeper.runtime.remote_session import RemoteEnd, SessionNews
from leasekeeper.runtime.session_host import HostedSession, SessionHost, SessionOrder, ended
from leasekeeper.runtime.session_link import MAX_FRAME_BYTES, VERSION, IncomingCall, Link, relay
from leasekeeper.runtime.session_opening import NOBODY_WAITED
from leasekeeper.runtime.session_run import SessionRun
from leasekeeper.runtime.session_terms import SessionEnd
from leasekeeper.server_trust import authorization, trusted
from leasekeeper.threads import run_in_thread
from leasekeeper.wire.encoding import encode_in_full
from leasekeeper.wire.shapes import decode

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

PATH: Final = "/v1/workers/sessions"
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
PING_SECONDS: Final = 5.0
GONE_SECONDS: Final = 15.0
LEAVE_SECONDS: Final = 5.0
_OFFERING: Final = "the connection for sessions, live views and take-over"


def news_of(session: HostedSession) -> SessionNews:
    """Everything that the server has to know of a session."""
    run, end = session.run, session.run.end
    over = session.over
    has_browser = session.passed_to is None  # else the session that got it asks
    return SessionNews(
        owner=session.owner,
        hash=session.hash,
        lease=run.lease,
        terms=run.terms,
        clients=run.clients,
        closing=run.closing,
        over=run.over,
        lost=run.lost,
        why_over=run.why_over if over else "",
        end=RemoteEnd(reason=end.reason, message=end.message, profile_state=run.profile_state) if end else None,
        person=run.person,
        asks=session.asks if has_browser else None,
        passed_to=None if session.passed_to is None else session.passed_to.session_id,
    )


class SessionOffer:
    """The worker's side of its server's sessions. `run` keeps connecting until it is cancelled."""

    def __init__(self, host: SessionHost, config: Config, pool: str, *, quiet: bool = False) -> None:
        self._host = host
        self._config = config
        self._pool = pool
        self._trouble = FailureLog(level=logging.INFO if quiet else logging.WARNING)
        self._link: Link | None = None
        self._reported: dict[str, dict[str, Any]] = {}
        self._passing: set[asyncio.Task[Any]] = set()
        self._lives = LiveOffer()

    async def run(self) -> None:
        """Keep a connection to the server: connect again whenever it is lost."""
        pause = FIRST_PAUSE
        while True:
            try:
                why, was_up = await self._connected()
            except (OSError, StoreUnavailable, NotAuthenticated) as error:
                self._trouble.again(_OFFERING, error)
            else:
                _LOG.warning("%s was lost, dialling again: %s", _OFFERING.capitalize(), why)
                pause = FIRST_PAUSE if was_up else pause
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - it spreads out many workers
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _connected(self) -> tuple[str, bool]:
        """Connect, and serve the connection until it is lost. Returns why it was lost, and True: it was up."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidStatus, WebSocketException

        url, secure = self._address()
        options: dict[str, Any] = {"ssl": secure} if secure else {"proxy": None}
        dialling = connect(
            url,
            additional_headers=authorization(self._config.token),
            compression=None,
            max_size=MAX_FRAME_BYTES,
            ping_interval=PING_SECONDS,
            ping_timeout=GONE_SECONDS,
            **options,
        )
        try:
            async with dialling as socket:
                link = Link(socket.send, perform=self._perform)
                receive = partial(_next_frame, socket)
                await socket.send(await self._hello())
                self._link, self._reported = link, {}
                self._host.machine.watch(self._on_machine)
                if self._host.unwell is not None:
                    self._on_machine()
                for session in self._host.open_sessions:
                    self._watch(session)
                for session in self._host.sessions:
                    if session.passed_to is not None:  # its program may still wait for a person's answer
                        self._notify(session)
                self._trouble.over(_OFFERING)
                try:
                    async with self._lives.offered(link):
                        why = await link.run(receive, beat=True)
                finally:
                    self._link = None
                    self._host.machine.unwatch(self._on_machine)
                return socket.close_reason or why, True
        except InvalidStatus as refused:
            raise _refusal(refused) from None
        except WebSocketException as error:
            raise StoreUnavailable(f"{self._config.browsers.server}: {error}") from None

    def _address(self) -> tuple[str, Any]:
        server = (self._config.browsers.server or "").rstrip("/")
        return server.replace("http", "ws", 1) + PATH, trusted(server, self._config.store_ca)

    async def _hello(self) -> str:
        import json

        return json.dumps(
            {
                "version": VERSION,
                "worker_id": self._host.worker_id,
                "pool": self._pool,
                "machine": await run_in_thread(known_machine_name, self._config.browsers),
                "limit": self._host.limit,
            }
        )

    async def flush(self) -> None:
        """Wait until all news were sent to the server, or the connection is lost."""
        if self._link is not None:
            await self._link.flush()

    def _on_machine(self) -> None:
        """Report whether this machine is unwell: the server requests no sessions from an unwell worker."""
        if self._link is not None:
            self._link.notify({"unwell": self._host.unwell})

    def _watch(self, session: HostedSession) -> None:
        """Report the session to the server, now and whenever it changes."""
        if isinstance(session.run, SessionRun):
            session.run.on_change = partial(self._notify, session)
        self._notify(session)

    def _notify(self, session: HostedSession) -> None:
        link = self._link
        if link is None:
            return
        end = session.run.end
        if isinstance(end, SessionEnd) and end.passed and session.passed_to is None:
            return  # which session got the browser is known in a moment
        news = news_of(session).as_json()
        if self._reported.get(session.session_id) != news:
            self._reported[session.session_id] = news
            link.notify(news)
        if session.run.over:
            self._reported.pop(session.session_id, None)

    async def _perform(self, call: IncomingCall) -> object:
        """Do what the server requests, and return the answer."""
        asked = call.arguments
        if call.name in CALLS:
            return await self._lives.perform(call)
        if call.name == "open":
            return await self._open(call, decode(SessionOrder, asked.get("order")))
        session = self._host.get(str(asked.get("session_id")))
        if session is None:
            raise ended(str(asked.get("session_id")), "this worker does not run it, or does not any more")
        if call.name == "client":
            await _serve(call, session)
        elif call.name == "release":
            session.run.release(asked.get("reason"), asked.get("message") or "", output=asked.get("output"))
        elif call.name in ("take", "hand_back"):
            following = await self._whole(self._pass(session, call.name, asked))
            return {"news": news_of(following).as_json()}
        elif call.name == "ask":
            await self._whole(self._ask(session, asked))
        elif call.name == "answer":
            ask = self._host.asked(session)
            end = await ask.ended(float(asked["wait_seconds"]))
            return {"asked": ask.what, "news": news_of(ask.session).as_json(), "end": encode_in_full(end)}
        else:
            session.check()
            try:
                await _use(session, call.name, asked)
            except Exception:
                session.check()
                raise
        return None

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish this work, also if the connection is lost: a browser that was passed on needs its next run."""
        task = asyncio.ensure_future(work)
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        return await asyncio.shield(task)

    async def _pass(self, session: HostedSession, name: str, asked: Any) -> HostedSession:
        if name == "take":
            following = await self._host.take(session, decode(Person, asked["person"]), str(asked["owner"]))
        else:
            following = await self._host.hand_back(session, decode(HumanAnswer, asked["answer"]))
        self._watch(following)
        if following is not session:
            self._notify(session)
        return following

    async def _ask(self, session: HostedSession, asked: Any) -> None:
        timeout = timedelta(seconds=float(asked["timeout_seconds"]))
        await self._host.request_human(session, str(asked["what"]), timeout)
        self._notify(session)

    async def _open(self, call: IncomingCall, order: SessionOrder) -> object:
        link = self._link
        session, text = await self._host.open(order)
        self._watch(session)
        answer: Any = {"news": news_of(session).as_json(), "token": text}
        await call.answer(answer)
        if link is None or link.lost is not None:
            session.run.release(Reason.TASK_ERROR, NOBODY_WAITED)
        return answer


async def _use(session: HostedSession, name: str, asked: Any) -> None:
    run = session.run
    match name:
        case "checkpoint":
            await run.checkpoint(str(asked["step"]), flush=bool(asked["flush"]), url=asked.get("url"))
        case "note":
            await run.note(str(asked["text"]), NoteAbout(asked["about"]))
        case "enter":
            await run.enter(str(asked["section"]), idempotent=bool(asked["idempotent"]))
        case "leave":
            await run.leave(str(asked["section"]))
        case _:
            raise InputError(f"this worker does not know {name}: upgrade it to the version of its server")


async def _serve(call: IncomingCall, session: HostedSession) -> None:
    """Relay messages between a client and the browser until one of them leaves."""
    run, asked = session.run, call.arguments
    session.check()
    try:
        async with run.viewer(acts=bool(asked.get("acts"))) if asked.get("viewer") else run.client() as client:
            await relay(call, client, partial(_why_cut, session))
    except ClientRefused as refused:
        session.check()
        raise Conflict(str(refused), cause=ConflictReason.CLIENT_REFUSED) from None


def _why_cut(session: HostedSession) -> str:
    return session.run.why_over if session.over else "the browser's keeper ended the connection"


async def _next_frame(socket: Any) -> bytes | None:
    from websockets.exceptions import ConnectionClosed

    try:
        message = await socket.recv()
    except ConnectionClosed:
        return None
    return message if isinstance(message, bytes) else b""


def _refusal(refused: Any) -> Exception:
    """The error for a server's refusal of the connection."""
    status = refused.response.status_code
    if status in (401, 403):
        said = bytes(refused.response.body or b"").decode(errors="replace")[:500]
        return NotAuthenticated(f"the server refuses this worker's token for sessions (HTTP {status}): {said}")
    if status == 404:
        return StoreUnavailable("the server knows no sessions of workers: upgrade it")
    return StoreUnavailable(f"the server answers with HTTP {status}")


@asynccontextmanager
async def browsers_offered(
    store: Store,
    config: Config,
    *,
    sessions: int,
    pool: str,
    worker_id: WorkerId | None = None,
    machine: Machine | None = None,
) -> AsyncIterator[None]:
    """While the block runs, keep a connection to the server that this process uses as its store. The server shows the
    browsers of this process's jobs, and opens up to `sessions` sessions here, which end with the block. `machine`: see
    `SessionHost`.

    Without a server, or a library to connect with, this does nothing if `sessions` is 0, else it raises InputError.
    """
    can_connect = find_spec("websockets") is not None
    if sessions == 0 and (config.browsers.server is None or not can_connect):
        if not can_connect and config.browsers.server is not None:
            _LOG.info("no live views here: they need the package websockets: pip install 'leasekeeper[sessions]'")
        yield
        return
    if config.browsers.server is None:
        raise InputError(
            "a worker offers sessions to a server, and this store is none: --store https://…; on one machine the "
            "server runs them itself, with --sessions 4"
        )
    if not can_connect:
        raise InputError("sessions need the package websockets: pip install 'leasekeeper[sessions]'")
    host = SessionHost(store, config, sessions, worker_id=worker_id, machine=machine)
    async with offered(host, config, pool):
        yield


@asynccontextmanager
async def offered(host: SessionHost, config: Config, pool: str, *, quiet: bool = False) -> AsyncIterator[None]:
    """Keep the connection to the server while the block runs. The end of the block ends the host's sessions.

    `quiet`: failures to connect are logged at INFO, for a program that works without the connection.
    """
    dialling, offer = None, SessionOffer(host, config, pool, quiet=quiet)
    if config.browsers.server is not None and find_spec("websockets") is not None:
        dialling = asyncio.create_task(offer.run())
    try:
        yield
    finally:
        await host.close()
        if dialling is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(offer.flush(), LEAVE_SECONDS)
            dialling.cancel()
            await asyncio.wait({dialling}, timeout=LEAVE_SECONDS)
