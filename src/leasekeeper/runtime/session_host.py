"""The sessions that this process runs for programs elsewhere: opened on request, found by id or token, ended with it.

A session's id is that of its run. Its token is bound to one lease and its fencing token, and kept as a hash; whoever
has it may use this session and nothing else. Knows neither HTTP nor who may ask for a session.
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
from typing import Final

from leasekeeper.browsers.machine_name import known_machine_name
from leasekeeper.config import Config
from leasekeeper.core.failures import Reason
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.leases import Purpose
from leasekeeper.core.tokens import hash_of, proves
from leasekeeper.errors import Conflict, ConflictReason, SessionEnded
from leasekeeper.ports import LeaseRequest, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.heartbeat import Heartbeat
from leasekeeper.runtime.lost_leases import LostLeases
from leasekeeper.runtime.opening import BrowserOpener
from leasekeeper.runtime.session_run import NOBODY_WAITED, SessionRun, SessionTerms, open_session
from leasekeeper.stores import open_store
from leasekeeper.threads import run_in_thread

TOKEN_PREFIX: Final = "lks_"  # noqa: S105 - what a session's token begins with
# So many sessions that are over are remembered, to say why they are; those before are in the list of runs.
MAX_ENDED: Final = 1_000
_STOPPING: Final = "this server is being stopped: ask again when it is back"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOrder:
    """What somebody wants. `profile_id` None: any free profile of `choice`. `owner` is the id of their API token."""

    owner: str
    profile_id: str | None = None
    choice: ProfileChoice | None = None
    wait: timedelta = timedelta(0)
    purpose: Purpose = Purpose.SESSION
    terms: SessionTerms = field(default_factory=SessionTerms)


class HostedSession:
    """A session of this process, open or over."""

    def __init__(self, run: SessionRun, owner: str, text: str) -> None:
        self.run = run
        self.owner = owner
        self.hash = hash_of(text)

    @property
    def session_id(self) -> str:
        return self.run.lease.run_id

    @property
    def over(self) -> bool:
        """Whether nothing can be done with it any more."""
        return self.run.closing or self.run.lost is not None

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
    """The error of whoever comes to a session that is over."""
    text = f"session {session_id} is over: {why}. Nothing more of it reaches the browser; open another session"
    return SessionEnded(text, session_id=session_id, reason=reason, lease_id=lease_id, profile_id=profile_id)


def _not_offered(why: str) -> Conflict:
    return Conflict(why, cause=ConflictReason.SESSIONS_NOT_OFFERED)


def _abandon(opening: "asyncio.Task[tuple[HostedSession, str]]") -> None:
    """End a session that was open just when its caller left."""
    if not opening.cancelled() and opening.exception() is None:
        session, _ = opening.result()
        session.run.release(Reason.TASK_ERROR, NOBODY_WAITED)


class SessionHost:
    """Up to `limit` open sessions at once. One for a process and a store; whoever opened the store closes it."""

    def __init__(self, store: Store, config: Config, limit: int) -> None:
        self.limit = limit
        self.worker_id = WorkerId(f"{socket.gethostname()}-{os.getpid()}"[:128])
        self._store = store
        self._config = config
        self._incarnation = f"{self.worker_id}-{os.urandom(6).hex()}"
        opening = partial(open_store, config.store, policy=config.policy, token=config.token, ca=config.store_ca)
        self._heartbeat = Heartbeat(opening, config.policy.timing)
        self._lost_leases = LostLeases(store, config)
        self._opener: BrowserOpener | None = None
        self._preparing = asyncio.Lock()
        self._places = asyncio.Semaphore(limit)
        self._open: dict[str, HostedSession] = {}
        self._ended: OrderedDict[str, HostedSession] = OrderedDict()
        self._by_hash: dict[str, HostedSession] = {}
        self._opening: set[asyncio.Task[tuple[HostedSession, str]]] = set()
        self._watching: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def sessions(self) -> Sequence[HostedSession]:
        """The open ones, then those that ended, the newest first."""
        return [*reversed(self._open.values()), *reversed(self._ended.values())]

    def get(self, session_id: str) -> HostedSession | None:
        """The session of this id, if this process runs it or remembers that it did."""
        return self._open.get(session_id) or self._ended.get(session_id)

    def by_token(self, text: str) -> HostedSession | None:
        """The session that this token is of."""
        return self._by_hash.get(hash_of(text)) if text.startswith(TOKEN_PREFIX) else None

    async def open(self, order: SessionOrder) -> tuple[HostedSession, str]:
        """Open a session; returns it with its token, which is kept nowhere. Raises what `open_session` does, and
        Conflict if there is no place for one.

        A task of its own, which is cancelled once however often the caller is, and which `close` waits for: what it
        has leased or opened it gives back.
        """
        opening = asyncio.create_task(self._open_one(order))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if opening.cancelled() and (me is None or not me.cancelling()):
                raise _not_offered(_STOPPING) from None
            opening.cancel()
            opening.add_done_callback(_abandon)
            raise

    async def _open_one(self, order: SessionOrder) -> tuple[HostedSession, str]:
        until = boot_time() + order.wait.total_seconds()
        await self._take_place(until)
        try:
            opener = await self._prepared()
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
        text = TOKEN_PREFIX + secrets.token_urlsafe(32)
        session = HostedSession(run, order.owner, text)
        self._open[session.session_id] = self._by_hash[session.hash] = session
        watching = asyncio.create_task(self._watch(session))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        if self._closing:
            self._stop(session)
        return session, text

    async def close(self) -> None:
        """End every session as a stopping worker ends its runs: closed with proof, settled."""
        self._closing = True
        for opening in list(self._opening):
            if not opening.cancelling():  # one whose caller left gives back already what it has
                opening.cancel()
        for session in list(self._open.values()):
            self._stop(session)
        while under_way := {*self._opening, *self._watching}:
            await asyncio.wait(under_way)
        if self._opener is not None:
            await self._opener.close()
        await run_in_thread(self._heartbeat.close)

    def _stop(self, session: HostedSession) -> None:
        session.run.release(Reason.WORKER_STOPPED, "the process that runs the browser was stopped")

    def _request(self, order: SessionOrder) -> LeaseRequest:
        return LeaseRequest(
            profile_id=ProfileId(order.profile_id or ""),
            worker_id=self.worker_id,
            incarnation=f"{order.owner}/{self._incarnation}",
            purpose=order.purpose,
            machine=known_machine_name(self._config.browsers),
        )

    async def _take_place(self, until: float) -> None:
        if self._closing:
            raise _not_offered(_STOPPING)
        if self.limit == 0:
            raise _not_offered("this server runs no browsers for sessions: start it with --sessions 4")
        try:
            async with asyncio.timeout(max(0.0, until - boot_time()) if self._places.locked() else None):
                await self._places.acquire()
        except TimeoutError:
            raise Conflict(
                f"all {self.limit} sessions are in use: wait with wait_s, release one, or allow more with --sessions",
                cause=ConflictReason.SESSIONS_FULL,
            ) from None

    async def _prepared(self) -> BrowserOpener:
        """The opener. Prepared when the first session is opened: a server without one needs no browser."""
        async with self._preparing:
            if self._opener is None:
                opener = BrowserOpener(self._config.browsers, self._store)
                await opener.prepare()
                self._opener = opener
            return self._opener

    async def _watch(self, session: HostedSession) -> None:
        try:
            with suppress(Exception):  # it is logged, and the lease resolved, where it happened
                await session.run.ended()
        finally:
            del self._open[session.session_id]
            self._ended[session.session_id] = session
            while len(self._ended) > MAX_ENDED:
                _, forgotten = self._ended.popitem(last=False)
                del self._by_hash[forgotten.hash]
            self._places.release()
