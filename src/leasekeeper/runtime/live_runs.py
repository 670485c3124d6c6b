"""The browsers that this process runs for jobs, by run: for whoever wants to look at one, or to take it.

One `LiveRun` is one browser from the first run in it that takes a person's order to the last: every run that it has
served in between is an entry here, so that a page about any of them finds it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.app import HumanAnswer
from leasekeeper.core.control import TransferRequest
from leasekeeper.core.ids import JobId, WorkerId
from leasekeeper.core.leases import Lease
from leasekeeper.driver_port import DevToolsClient, RunningBrowser
from leasekeeper.errors import Conflict, ConflictReason
from leasekeeper.runtime.person import Person, incarnation_of

if TYPE_CHECKING:
    from leasekeeper.runtime.session_run import SessionRun


@dataclass(frozen=True, slots=True)
class BackTo:
    """The job whose task goes on once a person hands its browser back."""

    job_id: JobId
    worker_id: WorkerId
    incarnation: str


@dataclass(slots=True)
class TakeOrder:
    """Somebody wants control. `answer` is the run that they get."""

    person: Person
    answer: "asyncio.Future[SessionRun]"


class LiveRun:
    """A browser that is open in this process for a job's run, or for the person who took it."""

    def __init__(self, lease: Lease, browser: RunningBrowser) -> None:
        self.lease = lease
        self.browser = browser
        self.human: SessionRun | None = None
        self.back: BackTo | None = None
        self.said: HumanAnswer | None = None
        self.asks: asyncio.Future[HumanAnswer] | None = None
        self.asks_what = ""
        self.asks_changed = asyncio.Event()
        self.came = asyncio.Event()
        self.asked = asyncio.Event()
        self.order: TakeOrder | None = None
        self.job_id = lease.job_id
        self._run_ids = [lease.run_id]

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
        """Give a person control. Returns their run. Raises Conflict if somebody has it, or it cannot be taken now."""
        holder = self.human.person if self.human is not None else self.order.person if self.order is not None else None
        if holder is not None:
            raise taken_already(holder, self.lease)
        order = self.order = TakeOrder(person, asyncio.get_running_loop().create_future())
        self.asked.set()
        return await asyncio.shield(order.answer)

    async def hand_back(self, answer: HumanAnswer) -> None:
        """Let the task go on with this answer: one whose browser a person has, or that only asks. Raises Conflict."""
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
            raise Conflict(
                f"the task of {self.lease.profile_id} cannot go on: release the browser instead, and requeue its job",
                cause=ConflictReason.NOT_RESUMABLE,
                run_id=self.lease.run_id,
            )
        to = TransferRequest(
            worker_id=back.worker_id,
            incarnation=incarnation_of(back.incarnation),
            actor=answer.by,
            note=answer.note,
            job_id=back.job_id,
        )
        self.said = answer
        await human.pass_on(to, reason=None, message=f"handed back by {answer.by}")

    def close_orders(self, why: str) -> None:
        """Nobody will get control of it any more."""
        self.refuse_order(
            Conflict(f"nothing was taken: {why}", cause=ConflictReason.LEASE_NOT_HELD, run_id=self.lease.run_id)
        )

    def refuse_order(self, error: Exception) -> None:
        """Whoever wanted control does not get it."""
        order, self.order = self.order, None
        self.asked.clear()
        if order is not None and not order.answer.done():
            order.answer.set_exception(error)
            order.answer.exception()  # whoever asked may have left

    def goes_on_under(self, lease: Lease) -> None:
        """The browser has passed to another run."""
        self.lease = lease
        self._run_ids.append(lease.run_id)
        _RUNNING[lease.run_id] = self

    def forget(self) -> None:
        """The browser has ended, or serves a run that nobody took."""
        self.close_orders("its run has ended")
        for run_id in self._run_ids:
            _RUNNING.pop(run_id, None)


def taken_already(person: Person, lease: Lease) -> Conflict:
    """Somebody else was first."""
    return Conflict(
        f"{person.name} has control of {lease.profile_id} already: ask them to hand it back",
        cause=ConflictReason.TAKEN_ALREADY,
        run_id=lease.run_id,
        profile_id=lease.profile_id,
    )


_RUNNING: dict[str, LiveRun] = {}


def live_run(run_id: str) -> LiveRun | None:
    """The run's browser, if this process has it open."""
    return _RUNNING.get(run_id)


def live_run_of(profile_id: str) -> LiveRun | None:
    """The browser of a profile, if this process has one open for a job."""
    return next((live for live in _RUNNING.values() if live.lease.profile_id == profile_id), None)


@contextmanager
def shown(run: LiveRun) -> Iterator[None]:
    """The run can be looked at and taken while the block lasts."""
    _RUNNING[run.lease.run_id] = run
    try:
        yield
    finally:
        run.forget()
