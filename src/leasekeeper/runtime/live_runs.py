"""The browsers that this process runs for jobs, by run id: people can view them and take control.

One `LiveRun` begins with a job's run. If a person takes the browser and hands it back, their runs belong to it too, and
each run is an entry here, so that a page about any of them finds it. Watchers are called at each change.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from leasekeeper.app import HumanAnswer
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.control import NotResumed, PersonAnswer, TransferRequest
from leasekeeper.core.ids import JobId, WorkerId
from leasekeeper.core.leases import Lease
from leasekeeper.driver_port import DevToolsClient, RunningBrowser
from leasekeeper.errors import Conflict
from leasekeeper.runtime.person import Closed, Person, incarnation_of

if TYPE_CHECKING:
    from leasekeeper.runtime.session_run import SessionRun

# How long `hand_back` waits until the task goes on under its new lease.
GOES_ON_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class BackTo:
    """The job whose task goes on once a person hands its browser back. `ready` returns whether that is possible now:
    the task waits, or it has stopped and `begins_anew`."""

    job_id: JobId
    worker_id: WorkerId
    incarnation: str
    ready: Callable[[], bool]
    begins_anew: bool


@dataclass(slots=True)
class TakeOrder:
    """A person wants control. `answer` is a future with the run that they get."""

    person: Person
    answer: "asyncio.Future[SessionRun]"


class LiveRun:
    """A browser that is open in this process for a job's run, or for the person who took it."""

    def __init__(self, lease: Lease, browser: RunningBrowser) -> None:
        self.lease = lease
        self.browser = browser
        self.human: SessionRun | None = None
        self.back: BackTo | None = None
        self.may_be_done: str | None = None
        self.said: HumanAnswer | None = None
        self.asks: asyncio.Future[HumanAnswer] | None = None
        self.asks_what = ""
        self.asks_changed = asyncio.Event()
        self.came = asyncio.Event()
        self.asked = asyncio.Event()
        self.order: TakeOrder | None = None
        self.job_id = lease.job_id
        self.leases = [lease]
        self.over = False
        self._last_answer: PersonAnswer | None = None
        self._with_task = asyncio.Event()

    @property
    def key(self) -> str:
        """The name of this browser while it is open: the id of its first run."""
        return self.leases[0].run_id

    @property
    def person(self) -> Person | None:
        """The person who has control; None if the task has."""
        return self.human.person if self.human is not None else None

    @property
    def wants(self) -> str | None:
        """What its task waits for a person to do; None if it does not wait."""
        return self.asks_what if self.asks is not None and not self.asks.done() else None

    @property
    def may_hand_back(self) -> bool:
        """Whether the task goes on once the browser is handed back, or its request is answered."""
        return self.back is not None if self.human is not None else self.wants is not None

    @asynccontextmanager
    async def viewer(self) -> AsyncIterator[DevToolsClient]:
        """One more DevTools client of its browser, for as long as the block lasts. Raises ClientRefused."""
        if self.human is not None:
            async with self.human.viewer() as client:
                yield client
            return
        client = await self.browser.add_client()
        try:
            yield client
        finally:
            await client.close()

    async def take(self, person: Person) -> "SessionRun":
        """Give a person control. Returns their run. Raises Conflict if another person has it, or it cannot be taken."""
        holder = self.human.person if self.human is not None else self.order.person if self.order is not None else None
        if holder is not None:
            raise taken_already(holder, self.lease)
        order = self.order = TakeOrder(person, asyncio.get_running_loop().create_future())
        self.asked.set()
        return await asyncio.shield(order.answer)

    async def hand_back(self, answer: HumanAnswer) -> None:
        """Give the task this answer, and its browser if a person has taken it, so that the task goes on.

        Raises Conflict if nobody has taken the browser and the task does not ask, or if the task cannot go on, or not
        yet.
        """
        human, back = self.human, self.back
        if human is None and self.asks is not None and not self.asks.done() and self.order is None:
            self.asks.set_result(answer)
            self.came.set()
            return
        if human is None:
            raise Conflict(
                f"nobody has taken run {self.lease.run_id}, and it does not ask for anybody",
                cause=ConflictReason.LEASE_NOT_HELD,
                run_id=self.lease.run_id,
            )
        if back is None:
            because = f", because {self.may_be_done}" if self.may_be_done else ""
            why: dict[str, Any] = {"why": NotResumed.MAY_BE_DONE_TWICE.value} if self.may_be_done else {}
            raise Conflict(
                f"the task of {self.lease.profile_id} cannot go on{because}: release the browser instead, and decide "
                "its job in the review",
                cause=ConflictReason.NOT_RESUMABLE,
                **why,
                run_id=self.lease.run_id,
            )
        if not back.ready():
            raise Conflict(
                f"the task of {self.lease.profile_id} was told to stop and has not stopped yet: try again, or release "
                "the browser",
                cause=ConflictReason.NOT_RESUMABLE,
                run_id=self.lease.run_id,
            )
        to = TransferRequest(
            worker_id=back.worker_id,
            incarnation=incarnation_of(back.incarnation),
            actor=answer.by,
            note=answer.note,
            job_id=back.job_id,
            begins_anew=back.begins_anew,
        )
        self.said = answer
        self._with_task.clear()
        await human.pass_on(to, reason=None, message=f"handed back by {answer.by}")
        with suppress(TimeoutError):
            async with asyncio.timeout(GOES_ON_SECONDS):
                await self._with_task.wait()

    async def release(self, message: str) -> Closed:
        """Close the browser that a person has, and settle their run. Raises Conflict if nobody has it."""
        human = self.human
        if human is None:
            raise not_taken(self.lease)
        human.release(message=message)
        end = await human.ended()
        return Closed(reason=end.reason, message=end.message, profile_state=human.profile_state)

    def ask(self, what: str) -> "asyncio.Future[HumanAnswer]":
        """From now on the task waits for a person. Returns a future with their answer."""
        self.came.clear()
        self.asks_what, self.said = what, None
        self.asks = asyncio.get_running_loop().create_future()
        self._asks_changed()
        return self.asks

    def answered(self, said: PersonAnswer) -> None:
        """A person has answered through the store. The same answer may come many times, until the task has gone on."""
        waits = self.asks is not None and not self.asks.done() and self.human is None and self.order is None
        if self.asks is None or not waits or said == self._last_answer:
            return
        self._last_answer = said
        self.asks.set_result(HumanAnswer(by=said.by, note=said.note, outcome=said.outcome))
        self.came.set()
        self.changed()

    def stop_asking(self) -> None:
        """The task no longer waits for a person."""
        self.asks, self.asks_what = None, ""
        self._asks_changed()

    def _asks_changed(self) -> None:
        self.asks_changed.set()
        self.changed()

    def given_to(self, human: "SessionRun", back: BackTo | None, may_be_done: str | None = None) -> None:
        """A person has control from now on. `back` is the job that can go on afterwards; `may_be_done` says what its
        task might do twice, if it began anew."""
        self.human, self.back, self.order = human, back, None
        self.may_be_done = may_be_done
        self._add_lease(human.lease)
        self.asked.clear()
        self.came.set()
        self.changed()

    def taken_back(self, lease: Lease) -> None:
        """The task has control again, under this lease."""
        self._add_lease(lease)
        self._with_task.set()
        self.changed()

    def person_left(self) -> None:
        """The person no longer has control: the browser is closed, or about to go back to the task."""
        self.human = self.back = None

    def close_orders(self, why: str) -> None:
        """Refuse the waiting order of a person, if there is one: the browser can no longer be taken."""
        self.refuse_order(
            Conflict(f"nothing was taken: {why}", cause=ConflictReason.LEASE_NOT_HELD, run_id=self.lease.run_id)
        )

    def refuse_order(self, error: Exception) -> None:
        """Refuse the waiting order of a person, if there is one, with this error."""
        order, self.order = self.order, None
        self.asked.clear()
        if order is not None and not order.answer.done():
            order.answer.set_exception(error)
            order.answer.exception()  # asyncio logs an error that nobody reads, and the caller may be gone

    def _add_lease(self, lease: Lease) -> None:
        self.lease = lease
        self.leases.append(lease)
        _RUNNING[lease.run_id] = self

    def forget(self) -> None:
        """Remove this entry: the browser has ended, or the next job's run has it."""
        self.close_orders("its run has ended")
        self.over = True
        self._with_task.set()
        for lease in self.leases:
            _RUNNING.pop(lease.run_id, None)
        self.changed()

    def changed(self) -> None:
        """Call every watcher."""
        for watcher in tuple(_WATCHERS):
            watcher(self)


def taken_already(person: Person, lease: Lease) -> Conflict:
    """The error for a browser that another person has taken already."""
    return Conflict(
        f"{person.name} has control of {lease.profile_id} already: ask them to hand it back",
        cause=ConflictReason.TAKEN_ALREADY,
        run_id=lease.run_id,
        profile_id=lease.profile_id,
    )


def not_taken(lease: Lease) -> Conflict:
    """The error for a browser that no person has taken: it cannot be released."""
    return Conflict(
        f"nobody has taken run {lease.run_id}: take it first", cause=ConflictReason.LEASE_NOT_HELD, run_id=lease.run_id
    )


Watcher = Callable[[LiveRun], None]
_RUNNING: dict[str, LiveRun] = {}
_WATCHERS: list[Watcher] = []


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """While the block lasts, call `watcher` with each browser that opens, changes hands, asks for a person, or ends."""
    _WATCHERS.append(watcher)
    try:
        yield
    finally:
        _WATCHERS.remove(watcher)


def live_runs() -> Sequence[LiveRun]:
    """Every browser that this process has open for a job."""
    return list(dict.fromkeys(_RUNNING.values()))


def live_run(run_id: str) -> LiveRun | None:
    """The run's browser, if this process has it open."""
    return _RUNNING.get(run_id)


def live_run_of(profile_id: str) -> LiveRun | None:
    """The browser of a profile, if this process has one open for a job."""
    return next((live for live in _RUNNING.values() if live.lease.profile_id == profile_id), None)


@contextmanager
def shown(run: LiveRun) -> Iterator[None]:
    """While the block lasts, people can view the run and take control of it."""
    _RUNNING[run.lease.run_id] = run
    run.changed()
    try:
        yield
    finally:
        run.forget()
