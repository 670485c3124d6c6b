"""The sessions that this process runs for programs elsewhere: opened on request, found by id or token, ended with it.

A session's id is that of its run. Its token is bound to one lease and its fencing token, and kept as a hash; with it, a
program may use this session and nothing else. Knows neither HTTP nor who may ask for a session.
"""

import asyncio
import os
import secrets
import socket
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from leasekeeper.app import HumanAnswer
from leasekeeper.browsers.machine_name import known_machine_name
from leasekeeper.config import Config
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.control import TransferRequest
from leasekeeper.core.failures import Reason
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.leases import Purpose
from leasekeeper.core.tokens import hash_of, proves
from leasekeeper.errors import Conflict, InputError, LeasekeeperError, Problem, SessionEnded
from leasekeeper.ports import LeaseRequest, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.heartbeat import Heartbeat
from leasekeeper.runtime.human_requests import AskEnd, AskState, SessionAsk
from leasekeeper.runtime.lease_opening import machine_unwell
from leasekeeper.runtime.live_runs import taken_already
from leasekeeper.runtime.lost_leases import LostLeases
from leasekeeper.runtime.machine import Machine
from leasekeeper.runtime.opening import BrowserOpener
from leasekeeper.runtime.person import IDLE, Person, incarnation_of
from leasekeeper.runtime.remote_session import RemoteRun
from leasekeeper.runtime.session_opening import NOBODY_WAITED, open_session
from leasekeeper.runtime.session_run import SessionRun
from leasekeeper.runtime.session_terms import SessionEnd, SessionTerms
from leasekeeper.stores import open_store
from leasekeeper.threads import run_in_thread

TOKEN_PREFIX: Final = "lks_"  # noqa: S105 - what a session's token begins with
# Limit of ended sessions in memory, kept to say why they ended. Older ones are in the list of runs.
MAX_ENDED: Final = 1_000
STOPPING: Final = "this server is being stopped: ask again when it is back"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOrder:
    """A request for a session. `profile_id` None: any free profile of `choice`. `owner` is the id of the caller's API
    token.

    `again`: the same request was refused a moment ago, so that another refusal is no further conflict.
    """

    owner: str
    profile_id: str | None = None
    choice: ProfileChoice | None = None
    wait: timedelta = timedelta(0)
    purpose: Purpose = Purpose.SESSION
    terms: SessionTerms = field(default_factory=SessionTerms)
    again: bool = False


class HostedSession:
    """A session of this process, or of a worker that is connected to it; open or over. `hash` is that of its token,
    `passed_to` the session that got its browser, `ask` its program's last request for a person. `owner` is the API
    token that opened it; empty: this process itself did."""

    def __init__(self, run: SessionRun | RemoteRun, owner: str, kept: str) -> None:
        self.run = run
        self.passed_to: HostedSession | None = None
        self.ask: SessionAsk | None = None
        self.owner = owner
        self.hash = kept

    @property
    def session_id(self) -> str:
        return self.run.lease.run_id

    @property
    def over(self) -> bool:
        """Whether the session can no longer be used: it is closing or closed, or its lease is lost."""
        return self.run.closing or self.run.lost is not None

    @property
    def asks(self) -> str | None:
        """What it waits for a person to do; None if it does not wait."""
        if isinstance(self.run, RemoteRun):
            return self.run.asks
        return self.ask.what if self.ask is not None and self.ask.waits else None

    @property
    def expires_at(self) -> datetime | None:
        """When it ends at the latest, by the store's clock."""
        longest = self.run.terms.max_duration
        return None if longest is None else self.run.lease.acquired_at + longest

    def proves(self, text: str) -> bool:
        """Whether this is the session's token."""
        return proves(text, self.hash)

    def check(self) -> None:
        """Raise SessionEnded, which says why, once it is over."""
        if self.over:
            lease, end = self.run.lease, self.run.end
            lost = None if self.run.lost is None else Reason.LEASE_LOST
            raise ended(
                self.session_id,
                self.run.why_over,
                reason=end.reason if end else lost,
                lease_id=lease.lease_id,
                profile_id=lease.profile_id,
            )


def ended(
    session_id: str,
    why: str,
    *,
    reason: str | None = None,
    lease_id: str | None = None,
    profile_id: str | None = None,
) -> SessionEnded:
    """The error of a request to a session that is over."""
    text = f"session {session_id} is over: {why}. Nothing more of it reaches the browser; open another session"
    return SessionEnded(text, session_id=session_id, reason=reason, lease_id=lease_id, profile_id=profile_id)


def not_offered(why: str) -> Conflict:
    """The error of a process that opens no session; `why` is its message."""
    return Conflict(why, cause=ConflictReason.SESSIONS_NOT_OFFERED)


def _abandon(opening: "asyncio.Task[tuple[HostedSession, str]]") -> None:
    """End a session that was opened at the moment when its caller left."""
    if not opening.cancelled() and opening.exception() is None:
        session, _ = opening.result()
        session.run.release(Reason.TASK_ERROR, NOBODY_WAITED)


class SessionHost:
    """Runs up to `limit` sessions at once. One for a process and a store; it does not close the store.

    No session is opened while the machine is unwell. `machine` is that of a worker in this process, which checks it;
    without one the host checks its own.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        limit: int,
        *,
        worker_id: WorkerId | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.limit = limit
        self.worker_id = worker_id or WorkerId(f"{socket.gethostname()}-{os.getpid()}"[:128])
        self._store = store
        self._config = config
        self._incarnation = f"{self.worker_id}-{os.urandom(6).hex()}"[-100:]
        opening = partial(open_store, config.store, policy=config.policy, token=config.token, ca=config.store_ca)
        self._heartbeat = Heartbeat(opening, config.policy.timing)
        self._lost_leases = LostLeases(store, config)
        self._opener = BrowserOpener(config.browsers, store, machine=machine) if limit else None
        self._prepared = False
        self._preparing = asyncio.Lock()
        self._checks_machine = machine is None
        if machine is None:
            data_dir = Path(config.browsers.data_dir)
            machine = self._opener.machine if self._opener is not None else Machine(data_dir, lambda: None)
        self.machine = machine
        self._machine_changed = asyncio.Event()
        self._checking: asyncio.Task[None] | None = None
        self.machine.watch(self._on_machine)
        self._places = asyncio.Semaphore(limit)
        self._open: dict[str, HostedSession] = {}
        self._ended: OrderedDict[str, HostedSession] = OrderedDict()
        self._by_hash: dict[str, HostedSession] = {}
        self._opening: set[asyncio.Task[tuple[HostedSession, str]]] = set()
        self._watching: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def unwell(self) -> str | None:
        """Why no session can be opened on this machine now; None if the machine is well."""
        return None if self.machine.unwell is None else self.machine.unwell.message

    @property
    def open_sessions(self) -> Sequence[HostedSession]:
        """Those that are not closed and settled yet."""
        return list(self._open.values())

    @property
    def free(self) -> int:
        """How many more sessions could be opened now."""
        if self._closing or self.machine.unwell is not None:
            return 0
        return max(0, self.limit - len(self._open) - len(self._opening))

    @property
    def sessions(self) -> Sequence[HostedSession]:
        """The open ones, then those that ended, the newest first."""
        return [*reversed(self._open.values()), *reversed(self._ended.values())]

    def get(self, session_id: str) -> HostedSession | None:
        """The session of this id, if this process runs it or remembers that it did."""
        return self._open.get(session_id) or self._ended.get(session_id)

    def by_token(self, text: str) -> HostedSession | None:
        """The session with this token; None if it is unknown."""
        return self._by_hash.get(hash_of(text)) if text.startswith(TOKEN_PREFIX) else None

    async def open(self, order: SessionOrder) -> tuple[HostedSession, str]:
        """Open a session. Returns it with its token, which is kept nowhere. Raises what `open_session` does, and
        Conflict if there is no place for one.

        It is opened in a task of its own, which gives back what it has leased or opened if it is cancelled. That task
        is cancelled only once, however often the caller is, and `close` waits for it.
        """
        opening = asyncio.create_task(self._open_one(order))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if opening.cancelled() and (me is None or not me.cancelling()):
                raise not_offered(STOPPING) from None
            opening.cancel()
            opening.add_done_callback(_abandon)
            raise

    async def _open_one(self, order: SessionOrder) -> tuple[HostedSession, str]:
        until = boot_time() + order.wait.total_seconds()
        await self._take_place(until)
        try:
            opener = await self._prepare()
            left = timedelta(seconds=max(0.0, until - boot_time()))
            run = await open_session(
                self._store,
                opener,
                self._heartbeat,
                self._lost_leases,
                self._request(order),
                choice=order.choice,
                wait=left,
                terms=order.terms,
            )
        except BaseException:
            self._places.release()
            raise
        return self._keep(run, order.owner)

    def _keep(self, run: SessionRun, owner: str) -> tuple[HostedSession, str]:
        text = TOKEN_PREFIX + secrets.token_urlsafe(32)
        session = HostedSession(run, owner, hash_of(text))
        self._open[session.session_id] = self._by_hash[session.hash] = session
        watching = asyncio.create_task(self._watch(session))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        if self._closing:
            self._stop(session)
        return session, text

    def keep(self, run: SessionRun) -> HostedSession:
        """Add a session that a program of this process has opened for itself. It is shown, can be taken over and can
        ask for a person like the others."""
        return self._keep(run, "")[0]

    async def take(self, session: HostedSession, person: Person, owner: str) -> HostedSession:
        """Give a person the browser of a session, which ends with TAKEN_OVER. Raises Conflict or SessionEnded."""
        run, lease = _own_run(session), session.run.lease
        if run.person is not None:
            raise taken_already(run.person, lease)
        session.check()
        to = TransferRequest(
            worker_id=person.worker_id,
            incarnation=self._incarnation_for(owner),
            actor=person.name,
            note=person.note,
        )
        message = f"taken over by {person.name}" + (f": {person.note}" if person.note else "")
        passed = await run.pass_on(to, reason=Reason.TAKEN_OVER, message=message)
        terms = SessionTerms(idle_timeout=IDLE, max_duration=run.terms.max_duration)
        following, _ = self._keep(run.next_run(passed, terms, person=person), owner)
        session.passed_to = following
        if session.ask is not None and session.ask.waits:
            following.ask = session.ask
            session.ask.taken(following)
        return following

    async def request_human(self, session: HostedSession, what: str, timeout: timedelta) -> SessionAsk:
        """Ask for a person, in a review. If the session already waits for one, returns that request. Raises Conflict or
        SessionEnded."""
        if session.ask is not None and session.ask.waits:
            return session.ask
        session.check()
        run = _own_run(session)
        if run.person is not None:
            raise Conflict(
                f"session {session.session_id} is a person's own: it cannot ask for a person and go on. Release it "
                f"with the reason {Reason.HUMAN_REVIEW_REQUIRED} instead",
                cause=ConflictReason.NOT_RESUMABLE,
                run_id=run.lease.run_id,
            )
        ask = session.ask = SessionAsk(session, run.terms, what, timeout)
        try:
            ask.what = await run.ask_person(what, ask.answered)
        except BaseException as error:
            ask.settle(AskEnd(state=AskState.OVER, why=f"nobody could be asked: {error}"))
            ask.finish()
            raise
        attending = asyncio.create_task(self._attend(session, run, ask))
        self._watching.add(attending)
        attending.add_done_callback(self._watching.discard)
        return ask

    def asked(self, session: HostedSession) -> SessionAsk:
        """The session's last request for a person. If there is none: raises SessionEnded if the session is over, else
        InputError."""
        if session.ask is None:
            session.check()
            raise InputError("nobody was asked", [Problem("message", "is required: what should the person do?")])
        return session.ask

    async def _attend(self, session: HostedSession, run: SessionRun, ask: SessionAsk) -> None:
        """Close the review once somebody has answered or nobody came. The end of its lease closes it too."""
        await ask.settled()
        try:
            if session.passed_to is None and not session.over:
                with suppress(LeasekeeperError):
                    await run.stop_asking()
        finally:
            ask.finish()

    async def hand_back(self, session: HostedSession, answer: HumanAnswer) -> HostedSession:
        """Answer a session that asks for a person. If a person took its browser, a new session goes on for the program
        that asked. Returns the session that goes on.

        Raises Conflict if no program asks, or SessionEnded.
        """
        ask, run = session.ask, _own_run(session)
        if ask is None or not ask.waits:
            raise Conflict(
                f"session {session.session_id} has nobody who could go on: release it",
                cause=ConflictReason.NOT_RESUMABLE,
                run_id=run.lease.run_id,
            )
        session.check()
        if run.person is None:
            ask.settle(AskEnd(state=AskState.ANSWERED, answer=answer))
            return session
        to = TransferRequest(
            worker_id=self.worker_id,
            incarnation=self._incarnation_for(ask.owner),
            purpose=Purpose.SESSION,
            actor=answer.by,
            note=answer.note,
        )
        passed = await run.pass_on(to, reason=None, message=f"handed back by {answer.by}")
        following, text = self._keep(run.next_run(passed, ask.terms), ask.owner)
        session.passed_to, following.ask, ask.session = following, ask, following
        ask.settle(AskEnd(state=AskState.ANSWERED, answer=answer, text=text))
        return following

    async def close(self) -> None:
        """End every session as a stopping worker ends its runs: closed with proof, settled."""
        self._closing = True
        for opening in list(self._opening):
            if not opening.cancelling():  # if its caller left, it is already giving back what it has
                opening.cancel()
        for session in list(self._open.values()):
            self._stop(session)
        while under_way := {*self._opening, *self._watching}:
            await asyncio.wait(under_way)
        self.machine.unwatch(self._on_machine)
        if self._checking is not None:
            self._checking.cancel()
        if self._opener is not None:
            await self._opener.close()
        await run_in_thread(self._heartbeat.close)

    def _stop(self, session: HostedSession) -> None:
        session.run.release(Reason.WORKER_STOPPED, "the process that runs the browser was stopped")

    def _incarnation_for(self, owner: str) -> str:
        return incarnation_of(f"{owner}/{self._incarnation}" if owner else self._incarnation)

    def _request(self, order: SessionOrder) -> LeaseRequest:
        return LeaseRequest(
            profile_id=ProfileId(order.profile_id or ""),
            worker_id=self.worker_id,
            incarnation=f"{order.owner}/{self._incarnation}",
            purpose=order.purpose,
            again=order.again,
            machine=known_machine_name(self._config.browsers),
        )

    async def _take_place(self, until: float) -> None:
        if self._closing:
            raise not_offered(STOPPING)
        if self.limit == 0:
            raise not_offered("this server runs no browsers for sessions: start it with --sessions 4")
        await self._until_well(until)
        try:
            async with asyncio.timeout(max(0.0, until - boot_time()) if self._places.locked() else None):
                await self._places.acquire()
        except TimeoutError:
            raise Conflict(
                f"all {self.limit} sessions are in use: wait with wait_s, release one, or allow more with --sessions",
                cause=ConflictReason.SESSIONS_FULL,
            ) from None

    async def _until_well(self, until: float) -> None:
        """Wait until the machine is well, at most until this time. Raises Conflict, which says what is wrong with
        it."""
        self.machine.check_room()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - boot_time())):
                while self.machine.unwell is not None:
                    self._machine_changed.clear()
                    await self._machine_changed.wait()
        if self.machine.unwell is not None:
            raise machine_unwell(self.machine.unwell)

    def _on_machine(self) -> None:
        self._machine_changed.set()
        if self._checks_machine and self.machine.unwell is not None:
            self._checking = asyncio.create_task(self.machine.check_until_well())

    async def _prepare(self) -> BrowserOpener:
        """The opener. It is prepared when the first session is opened: a server without sessions needs no browser."""
        opener = self._opener
        if opener is None:
            raise RuntimeError("this host opens no sessions")
        async with self._preparing:
            if not self._prepared:
                try:
                    await opener.prepare()
                except (LeasekeeperError, OSError) as error:
                    unwell = await self.machine.blame_for_opening(error)
                    if unwell is None:
                        raise
                    raise machine_unwell(unwell) from error
                self._prepared = True
            return opener

    async def _watch(self, session: HostedSession) -> None:
        try:
            with suppress(Exception):  # the run has logged it; its lease will be resolved
                await session.run.ended()
        finally:
            del self._open[session.session_id]
            self._ended[session.session_id] = session
            while len(self._ended) > MAX_ENDED:
                _, forgotten = self._ended.popitem(last=False)
                del self._by_hash[forgotten.hash]
            end = session.run.end
            if not (isinstance(end, SessionEnd) and end.passed):  # else the next session keeps the place
                self._places.release()
                _nobody_answers(session)


def _own_run(session: HostedSession) -> SessionRun:
    if isinstance(session.run, RemoteRun):
        raise TypeError(f"session {session.session_id} is a worker's: ask there")
    return session.run


def _nobody_answers(session: HostedSession) -> None:
    """The browser is closed: end the request for a person, if there is one."""
    if session.ask is not None:
        person = session.run.person if isinstance(session.run, SessionRun) else None
        why = session.run.why_over
        said = why if person is None else f"{person.name} took the browser and did not hand it back ({why})"
        session.ask.settle(AskEnd(state=AskState.OVER, why=said))
