"""Every session that this server offers: those that it runs itself, and those of workers that are connected to it.

Chooses where a session is opened: a worker of the profile's pool, on the machine that the profile is at home on, the
one with most places free. The worker has the last word: one that is full, whose machine is unwell, or that has no such
profile free is passed over.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, Protocol

from leasekeeper.app import HumanAnswer
from leasekeeper.browsers.machine_name import known_machine_name
from leasekeeper.config import Config
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.homes import is_away
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.tokens import hash_of
from leasekeeper.errors import Conflict, LeasekeeperError, NotFound, ProfileBusy
from leasekeeper.ports import Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.human_requests import SessionAsk
from leasekeeper.runtime.person import Person
from leasekeeper.runtime.remote_live import RemoteLive
from leasekeeper.runtime.remote_session import RemoteAsk, RemoteRun
from leasekeeper.runtime.session_host import (
    MAX_ENDED,
    STOPPING,
    TOKEN_PREFIX,
    HostedSession,
    SessionHost,
    SessionOrder,
    not_offered,
)
from leasekeeper.runtime.session_link import lost_link

# How long one worker waits for a profile before the next one is asked.
TURN: Final = timedelta(seconds=5)
_PASSED_OVER: Final = (
    ConflictReason.SESSIONS_FULL,
    ConflictReason.SESSIONS_NOT_OFFERED,
    ConflictReason.WORKER_AWAY,
    ConflictReason.MACHINE_UNWELL,
)


class OpensSessions(Protocol):
    """What opens sessions: this server's own host, or a worker's connection."""

    @property
    def free(self) -> int:
        """The number of sessions that it could open now."""
        ...

    @property
    def unwell(self) -> str | None:
        """What is wrong with its machine: then none is free."""
        ...

    async def open(self, order: SessionOrder) -> tuple[HostedSession, str]:
        """Open a session and return it with its token."""
        ...

    async def close(self) -> None:
        """Stop offering sessions. A worker's sessions go on, those of this server end."""
        ...


@dataclass(slots=True, kw_only=True)
class Place:
    """A host of sessions, for profiles of one pool (None: of any), on a machine. `limit` 0: no sessions.

    `lives` are the browsers that it has open for jobs, by their first run.
    """

    offering: OpensSessions
    worker_id: str
    pool: str | None
    machine: str | None
    limit: int
    known: dict[str, HostedSession] = field(default_factory=dict)
    lives: dict[str, RemoteLive] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an order needs from the place where it is opened."""

    pool: str | None
    home: str = ""
    saved: bool = False


class SessionFleet:
    """The sessions of one server. `here` runs its own; `places` are the workers that are connected."""

    def __init__(self, store: Store, config: Config, limit: int) -> None:
        self.here = SessionHost(store, config, limit)
        self.places: list[Place] = []
        self._store = store
        self._machine = known_machine_name(config.browsers) if limit else None
        self._ended: OrderedDict[str, HostedSession] = OrderedDict()
        self._left: OrderedDict[str, str] = OrderedDict()
        self._by_hash: dict[str, HostedSession] = {}
        self._changed = asyncio.Event()
        self._closing = False

    @property
    def sessions(self) -> Sequence[HostedSession]:
        """The open ones of this server, those of its workers, then those that ended, the newest first."""
        own = self.here.sessions
        still = [each for each in own if not each.run.over]
        over = [each for each in own if each.run.over]
        remote = [each for place in self.places for each in reversed(place.known.values())]
        return [*still, *remote, *over, *reversed(self._ended.values())]

    def get(self, session_id: str) -> HostedSession | None:
        """The session of this id, if it runs here or on a connected worker, or did recently."""
        return self.here.get(session_id) or next(self._remote(session_id), None)

    def by_token(self, text: str) -> HostedSession | None:
        """The session that this token is of."""
        if not text.startswith(TOKEN_PREFIX):
            return None
        return self.here.by_token(text) or self._by_hash.get(hash_of(text))

    def left_with(self, session_id: str, text: str) -> bool:
        """Whether this token was of a session whose worker's connection was lost."""
        return self._left.get(session_id) == hash_of(text)

    def following(self, session: HostedSession) -> HostedSession | None:
        """The session that got its browser while it was open."""
        if session.passed_to is None and isinstance(session.run, RemoteRun) and session.run.passed_to:
            return self.get(session.run.passed_to)
        return session.passed_to

    def ended(self, session_id: str) -> HostedSession | None:
        """A worker's session that has ended, if it was known here."""
        return self._ended.get(session_id)

    def live_run(self, run_id: str) -> RemoteLive | None:
        """The browser that a connected worker has open for this run, or had when it passed to the next one."""
        return next((live for live in self._lives() if any(lease.run_id == run_id for lease in live.leases)), None)

    def live_run_of(self, profile_id: str) -> RemoteLive | None:
        """The browser of a profile, if a connected worker has one open for a job."""
        return next((live for live in self._lives() if live.lease.profile_id == profile_id), None)

    def _lives(self) -> Iterator[RemoteLive]:
        """The newest connection first, for workers that reconnected."""
        for place in reversed(self.places):
            yield from place.lives.values()

    async def take(self, session: HostedSession, person: Person, owner: str) -> HostedSession:
        """Give a person the browser of a session, here or on its worker. Raises what `SessionHost.take` does."""
        if not isinstance(session.run, RemoteRun):
            return await self.here.take(session, person, owner)
        return await session.run.take(person, owner)

    async def hand_back(self, session: HostedSession, answer: HumanAnswer) -> HostedSession:
        """Answer a session that asks for a person. Raises what `SessionHost.hand_back` does."""
        if not isinstance(session.run, RemoteRun):
            return await self.here.hand_back(session, answer)
        return await session.run.hand_back(answer)

    async def request_human(self, session: HostedSession, what: str, timeout: timedelta) -> SessionAsk | RemoteAsk:
        """Ask for a person. Raises what `SessionHost.request_human` does."""
        if not isinstance(session.run, RemoteRun):
            return await self.here.request_human(session, what, timeout)
        await session.run.ask_person(what, timeout)
        return RemoteAsk(session, session.run)

    def asked(self, session: HostedSession) -> SessionAsk | RemoteAsk:
        """Its last question. If there was none, a worker's session reports that when its answer is awaited."""
        return RemoteAsk(session, session.run) if isinstance(session.run, RemoteRun) else self.here.asked(session)

    async def away(self, run: RunRecord) -> Conflict | None:
        """The error for a session that is not known here, if a worker runs it that is not connected."""
        if run.ended_at is not None:
            return None
        try:
            lease = await self._store.get(Lease, run.lease_id)
        except NotFound:
            return None
        # token of the worker / owner of the session / the worker's host of sessions
        if lease.incarnation.count("/") != 2:
            return None
        return lost_link(
            f"session {run.run_id} runs on worker {run.worker_id}, which is not connected to this server now: "
            "try again in some seconds; if it does not come back, its lease expires and the browser is closed"
        )

    async def open(self, order: SessionOrder) -> tuple[HostedSession, str]:
        """Open a session where it can be. Raises what `SessionHost.open` does."""
        if not any(place.limit for place in self.places):
            return await self.here.open(order)
        until = boot_time() + order.wait.total_seconds()
        wanted = await self._wanted(order)
        while True:
            self._changed.clear()
            left = max(0.0, until - boot_time())
            found = self._candidates(wanted)
            if not found:
                raise not_offered(STOPPING if self._closing else _nobody(wanted))
            turn = left if len(found) == 1 else min(left, TURN.total_seconds())
            refused = await self._try_each(found, order, turn)
            if not isinstance(refused, LeasekeeperError):
                return refused
            order = replace(order, again=True)
            left = until - boot_time()
            if left <= 0:
                raise refused
            if isinstance(refused, Conflict):  # no host has a free place: wait until one has
                try:
                    async with asyncio.timeout(min(left, TURN.total_seconds())):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def _try_each(
        self, places: list[Place], order: SessionOrder, turn: float
    ) -> tuple[HostedSession, str] | LeasekeeperError:
        """Try one after the other; the last one may wait for a profile. If all refuse, raises the most specific
        refusal.
        """
        refused: LeasekeeperError | None = None
        with_room = [place for place in places if place.offering.free > 0]
        for place in with_room:
            wait = timedelta(seconds=turn if place is with_room[-1] else 0)
            try:
                return await place.offering.open(replace(order, wait=wait))
            except ProfileBusy as busy:
                refused = busy
            except Conflict as conflict:
                if conflict.cause not in _PASSED_OVER:
                    raise
                refused = refused or conflict
        return refused or _no_place(places)

    def _candidates(self, wanted: Wanted) -> list[Place]:
        """The places that may open it: on the machine that has its directory, those with most room first."""
        if self._closing:
            return []
        own = Place(
            offering=self.here,
            worker_id=self.here.worker_id,
            pool=None,
            machine=self._machine,
            limit=self.here.limit,
        )
        fit = [
            place
            for place in (own, *self.places)
            if place.limit
            and (place.pool is None or wanted.pool is None or place.pool == wanted.pool)
            and not is_away(wanted.home, place.machine, saved=wanted.saved)
        ]
        return sorted(fit, key=lambda place: (place.machine != wanted.home, -place.offering.free))

    async def _wanted(self, order: SessionOrder) -> Wanted:
        if order.choice is not None:
            return Wanted(order.choice.pool)
        profile_id = order.profile_id or ""
        profile = await self._store.get(Profile, profile_id)
        lane = await self._store.get(Lane, profile_id)
        return Wanted(profile.pool, lane.home, lane.saved)

    def join(self, place: Place) -> None:
        """A worker is connected."""
        self.places.append(place)
        self.changed()

    def leave(self, place: Place) -> None:
        """Its connection is lost: its sessions are not known here until it reconnects."""
        self.places.remove(place)
        for session in place.known.values():
            self._by_hash.pop(session.hash, None)
            self._left[session.session_id] = session.hash
        while len(self._left) > MAX_ENDED:
            self._left.popitem(last=False)
        place.known.clear()
        place.lives.clear()
        self.changed()

    def knows(self, place: Place, session: HostedSession) -> None:
        """Add a session of a worker."""
        place.known[session.session_id] = session
        self._left.pop(session.session_id, None)
        if self._by_hash.setdefault(session.hash, session).session_id == session.session_id:
            self._by_hash[session.hash] = session  # not the session of a connection that was lost

    def moved(self, place: Place, session: HostedSession) -> None:
        """The session has changed. An ended one is remembered, to answer why it ended."""
        if session.run.over and place.known.pop(session.session_id, None) is not None:
            self._ended[session.session_id] = session
            while len(self._ended) > MAX_ENDED:
                _, forgotten = self._ended.popitem(last=False)
                self._by_hash.pop(forgotten.hash, None)
        self.changed()

    def changed(self) -> None:
        """There may be a place now for those who wait for one."""
        self._changed.set()

    async def close(self) -> None:
        """End the sessions that run here. Those of workers go on, and are found again by the next server."""
        self._closing = True
        self._changed.set()
        for place in list(self.places):
            await place.offering.close()
        await self.here.close()

    def _remote(self, session_id: str) -> Iterator[HostedSession]:
        for place in self.places:
            if session_id in place.known:
                yield place.known[session_id]
        if session_id in self._ended:
            yield self._ended[session_id]


def _no_place(places: list[Place]) -> Conflict:
    """Why none of them has a place free."""
    unwell = [place for place in places if place.offering.unwell]
    if len(unwell) == len(places):
        first = unwell[0]
        return Conflict(
            f"no session can be opened: the machine of worker {first.worker_id} is unwell: {first.offering.unwell}",
            cause=ConflictReason.MACHINE_UNWELL,
        )
    limit = sum(place.limit for place in places if not place.offering.unwell)
    full = f"all {limit} sessions are in use: wait with wait_s, release one, or allow more with --sessions"
    return Conflict(full, cause=ConflictReason.SESSIONS_FULL)


def _nobody(wanted: Wanted) -> str:
    pool = f" of pool {wanted.pool}" if wanted.pool else ""
    where = f" on machine {wanted.home}, where the profile is at home" if wanted.home and not wanted.saved else ""
    return (
        f"no worker{pool} offers sessions{where}: start one with --sessions 4"
        f"{' --pool ' + wanted.pool if wanted.pool else ''}"
    )
