"""A person takes the browser of a job's run, works in it, and hands it back to the task or releases it.

The worker stays the holder: it renews the person's lease until they are idle for too long. The task is cancelled,
unless it waits for a person. Nothing that it sends reaches the browser until the browser is handed back.
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from leasekeeper.app import HumanAnswer, Run, SyncRun
from leasekeeper.core.control import TransferRequest
from leasekeeper.core.failures import Reason
from leasekeeper.core.leases import may_have_been_done
from leasekeeper.errors import LeaseLost
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime.control_transfer import Passed, pass_on, seen_evidence
from leasekeeper.runtime.endings import Outcome
from leasekeeper.runtime.live_runs import BackTo, LiveRun, TakeOrder
from leasekeeper.runtime.opening import BrowserOpener, Opened
from leasekeeper.runtime.person import IDLE, Person, incarnation_of, own_part
from leasekeeper.runtime.run_api import RunApi
from leasekeeper.runtime.run_settling import RunSettling
from leasekeeper.runtime.run_state import RunState
from leasekeeper.runtime.session_run import SessionRun
from leasekeeper.runtime.session_terms import SessionEnd, SessionTerms
from leasekeeper.runtime.shutdown import Shutdown


class GoesOn(Enum):
    """What becomes of the task: it goes on where it waits, it begins anew in the open browser, or it is over."""

    WAITING = auto()
    ANEW = auto()
    NOT = auto()


class PersonControl:
    """Takes the browsers of one worker's runs for people, and gives them back."""

    def __init__(self, store: Store, opener: BrowserOpener, settling: RunSettling, stop: Shutdown) -> None:
        self._store = store
        self._opener = opener
        self._settling = settling
        self._stop = stop

    async def works(
        self,
        current: RunState,
        opened: Opened,
        live: LiveRun,
        run: Run | SyncRun,
        api: RunApi,
        work: "asyncio.Future[object]",
    ) -> GoesOn:
        """Give the browser to the person who asked for it, and wait until they are done. Returns what becomes of the
        task."""
        order = live.order
        if order is None:
            return GoesOn.WAITING
        waited = live.asks is not None
        try:
            passed = await self._give(current, opened, order.person)
        except Exception as error:  # noqa: BLE001 - the person who asked gets it
            opened.browser.resume()
            live.refuse_order(error)
            return GoesOn.WAITING
        current.given_away = True
        if not waited:
            work.cancel()
        done = may_have_been_done(passed.grant.lease)
        ready = None
        if waited or (current.task.resumable and done is None):
            ready = _always if waited else work.done
        human = self._begin(opened, order, passed)
        live.given_to(human, _back(current.grant, ready, anew=not waited), done if current.task.resumable else None)
        order.answer.set_result(human)
        end = await self._until_done(human)
        live.person_left()
        if end.passed is None:
            api.person_left(LeaseLost(f"{order.person.name} took the browser and did not hand it back"))
            return GoesOn.NOT
        self._take_back(current, opened, live, run, api, end.passed)
        return GoesOn.WAITING if waited else GoesOn.ANEW

    async def _give(self, current: RunState, opened: Opened, person: Person) -> Passed:
        message = f"taken over by {person.name}" + (f": {person.note}" if person.note else "")
        await opened.browser.pause(f"{person.name} has control")
        await current.end_recording()
        facts = await seen_evidence(self._opener, opened, current.evidence)
        ending = self._settling.ending(current, Outcome(reason=Reason.TAKEN_OVER, message=message), facts)
        to = TransferRequest(
            worker_id=person.worker_id,
            incarnation=incarnation_of(own_part(current.grant.lease.incarnation)),
            actor=person.name,
            note=person.note,
        )
        return await pass_on(self._store, self._opener, opened, current.guard, current.evidence, ending, to)

    def _begin(self, opened: Opened, order: TakeOrder, passed: Passed) -> SessionRun:
        return SessionRun(
            self._store,
            self._opener,
            passed.guard,
            passed.grant,
            passed.evidence,
            opened,
            SessionTerms(idle_timeout=IDLE),
            person=order.person,
        )

    async def _until_done(self, human: SessionRun) -> SessionEnd:
        stopping = asyncio.ensure_future(self._stop.now.wait())
        ending = asyncio.ensure_future(human.ended())
        try:
            await asyncio.wait({stopping, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                human.release(Reason.WORKER_STOPPED, "the worker was stopped while a person had control")
            return await ending
        finally:
            stopping.cancel()

    @staticmethod
    def _take_back(
        current: RunState, opened: Opened, live: LiveRun, run: Run | SyncRun, api: RunApi, passed: Passed
    ) -> None:
        current.continue_under(passed.grant, passed.guard, passed.evidence)
        api.continue_under(passed.guard.kept, passed.evidence)
        run.continue_under(passed.grant)
        live.taken_back(passed.grant.lease)
        opened.browser.resume()
        if live.asks is not None and not live.asks.done():
            live.asks.set_result(live.said or HumanAnswer(by=""))


def _back(before: Grant, ready: Callable[[], bool] | None, *, anew: bool) -> BackTo | None:
    if ready is None or before.job is None:
        return None
    return BackTo(before.job.job_id, before.lease.worker_id, own_part(before.lease.incarnation), ready, anew)


def _always() -> bool:
    return True
