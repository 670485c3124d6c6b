"""Leasekeeper for programs: submit jobs, lease a profile, look at everything.

async with connect("sqlite:///leasekeeper.db") as client:
    await client.submit("sync_orders", account="store_us_018", payload={"day": "2026-01-31"})
    async with client.lease("store_us_018") as lease:
        ...
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from leasekeeper import config as settings
from leasekeeper.aside import aside
from leasekeeper.core.events import manual_use
from leasekeeper.core.failures import ProfileRule, handed_in, unknown
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.leases import Lease, LeaseStatus, Mode, Purpose
from leasekeeper.core.profiles import ManualUse, ReleasePolicy
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.core.why import Why, explain
from leasekeeper.errors import (
    Conflict,
    Fail,
    InputError,
    LeasekeeperError,
    LeaseLost,
    ProfileBusy,
)
from leasekeeper.evidence.redact import MOST_MESSAGE, Redactor
from leasekeeper.ports import Grant, LeaseRequest, Page, Settled, Store, Submitted
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.heartbeat import Heartbeat, Hold, checkpoint_held, enter_held, leave_held, settle_held
from leasekeeper.stores import absolute, open_store
from leasekeeper.wire import parse_jobs

if TYPE_CHECKING:
    from leasekeeper.runtime.borrowing import Borrowed

T = TypeVar("T")

ASK_AGAIN = timedelta(seconds=1)


@asynccontextmanager
async def connect(store: str | None = None, **overrides: str | float) -> AsyncIterator["Client"]:
    """Open a store by URL (or LEASEKEEPER_STORE, or ./leasekeeper.db). Settings may be given by name."""
    if store is not None:
        overrides["store"] = store
    loaded = settings.load(**overrides)
    config = replace(loaded, store=absolute(loaded.store))
    opened = await open_store(config.store, policy=config.policy)
    client = Client(opened, config)
    try:
        yield client
    finally:
        await client.close()


class Client:
    """One program's view of a store. `store` is the whole port, for what has no shorthand here."""

    def __init__(self, store: Store, config: settings.Config) -> None:
        self.store = store
        self.config = config
        self.worker_id = WorkerId(f"{socket.gethostname()}-{os.getpid()}"[:128])
        self._incarnation = f"{self.worker_id}-{os.urandom(6).hex()}"
        self._heartbeat = Heartbeat(
            lambda: open_store(self.config.store, policy=self.config.policy), config.policy.timing
        )

    async def close(self) -> None:
        """Stop renewing and close the store."""
        await aside(self._heartbeat.close)
        await self.store.close()

    async def submit(
        self,
        task: str | Mapping[str, Any],
        *,
        account: str | None = None,
        profile: str | None = None,
        payload: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Submitted:
        """Submit one job: a task name with fields, or a whole job as a mapping. See docs/reference/job.schema.json."""
        if isinstance(task, str):
            job: dict[str, Any] = {"task": task, **fields}
            job |= {
                k: v
                for k, v in (("account_id", account), ("profile_id", profile), ("payload", payload))
                if v is not None
            }
        elif fields or account or profile or payload:
            raise InputError("give either a whole job or a task name with fields, not both")
        else:
            job = dict(task)
        return (await self.submit_many([job]))[0]

    async def submit_many(self, jobs: Sequence[Mapping[str, Any]]) -> list[Submitted]:
        """Submit up to 1,000 jobs, all or none."""
        return await self.store.submit(parse_jobs(list(jobs)))

    def lease(
        self,
        profile: str,
        *,
        purpose: Purpose | str = Purpose.API,
        mode: Mode | str = Mode.EXCLUSIVE,
        ttl: timedelta | None = None,
        release_policy: ReleasePolicy | str | None = None,
        wait: timedelta | None = None,
        worker_id: str | None = None,
    ) -> "HeldLease":
        """A lease of one profile, as a context manager. With `wait`, asks again until it is free or time is up."""
        request = LeaseRequest(
            profile_id=ProfileId(profile),
            worker_id=WorkerId(worker_id) if worker_id else self.worker_id,
            incarnation=self._incarnation,
            purpose=Purpose(purpose),
            mode=Mode(mode),
            ttl=ttl,
            release_policy=ReleasePolicy(release_policy) if release_policy else None,
        )
        return HeldLease(self, self._heartbeat, request, wait or timedelta(0))

    async def why(self, *, job: str | None = None, profile: str | None = None) -> Why:
        """Why a job does not run, or a profile is not available, in sentences."""
        return explain(await self.store.why(job_id=job, profile_id=profile))

    async def get(self, kind: type[T], record_id: str) -> T:
        """One record by id: `await client.get(Job, job_id)`."""
        return await self.store.get(kind, record_id)

    async def find(self, kind: type[T], *, after: str | None = None, most: int = 100, **where: str) -> Page[T]:
        """A page of records: `await client.find(Job, state="blocked", account_id="store_us_018")`."""
        return await self.store.find(kind, where, after=after, most=most)


class HeldLease:
    """A lease while it is held: renewed by itself, released with an outcome at the end.

    Leaving the block normally, or with `Fail`, is an ending that explains itself. Any other exception is not, unless
    `closed` was called: the profile then leaves the rotation until a rule or a person has dealt with it.
    """

    def __init__(self, client: Client, heartbeat: Heartbeat, request: LeaseRequest, wait: timedelta) -> None:
        self._store = client.store
        self._data_dir = Path(client.config.browsers.data_dir).absolute()
        self._heartbeat = heartbeat
        self._request = request
        self._wait = wait
        self._entered = False
        self._grant: Grant | None = None
        self._hold: Hold | None = None
        self._borrowed: Borrowed | None = None
        self._refused: Fail | None = None
        self._fence: int | None = None
        self._closed: EndFacts | None = None
        self._last_url: str | None = None
        self._redactor = Redactor()
        self._settled: Settled | None = None
        self._ending = False
        self._lost_event = asyncio.Event()

    @property
    def grant(self) -> Grant:
        """The lease with its profile, account and proxy. Only inside the block."""
        if self._grant is None:
            raise Conflict(f"profile {self._request.profile_id} is not leased yet: use 'async with'")
        return self._grant

    @property
    def lease(self) -> Lease:
        return self.grant.lease

    @property
    def token(self) -> int:
        """The fencing token: pass it to whatever should refuse a late writer."""
        return self.lease.token

    @property
    def settled(self) -> Settled | None:
        """What became of the profile, once released."""
        return self._settled

    async def __aenter__(self) -> Self:
        if self._entered:
            raise Conflict("this lease was used already: ask the client for another one")
        self._entered = True
        try:
            await self._enter()
        except BaseException:
            self._entered = False
            raise
        return self

    async def _enter(self) -> None:
        until = boot_time() + self._wait.total_seconds()
        while True:
            sent_at = boot_time()
            try:
                self._grant = await self._acquire()
                break
            except ProfileBusy:
                if boot_time() >= until:
                    raise
                pause = min(ASK_AGAIN.total_seconds(), max(0.0, until - boot_time()))
                await self._store.wait("", timedelta(seconds=pause))
        loop = asyncio.get_running_loop()

        def tell(_why: str) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._lost_event.set)

        self._hold = self._heartbeat.hold(self._grant.lease, sent_at, tell)

    async def _acquire(self) -> Grant:
        """Ask for the lease. If we are cancelled while the answer is under way, the lease is given back."""
        asking = asyncio.ensure_future(self._store.acquire(self._request))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            with suppress(LeasekeeperError):
                grant = await asking
                await self._store.settle([Ending(ref=grant.lease.ref, facts=EndFacts(browser=Browser.NONE))])
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._settled is not None or self._ending:
                return
            if error is None:
                await self.release()
            elif isinstance(error, Fail):
                await self.release(error.reason, error.detail)
            else:
                unexplained = EndFacts(browser=Browser.NOT_PROVEN, final_url=self._last_url)
                await self._end("TASK_ERROR", type(error).__name__, self._closed or unexplained, None)
        except LeaseLost as lost:
            if error is None:
                raise
            error.add_note(str(lost))
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """The lease is over: nothing is renewed any more, and the directory is for others."""
        self._heartbeat.drop(self._held())
        if self._borrowed is not None:
            self._borrowed.let_go()

    def check(self) -> None:
        """Raise LeaseLost if the profile must not be touched any more. Cheap: call it before every step."""
        self._held().check()

    def _held(self) -> Hold:
        if self._hold is None:
            raise Conflict(f"profile {self._request.profile_id} is not leased")
        return self._hold

    async def lost(self) -> str:
        """Wait until the lease is lost, and say why. For a task that watches over another."""
        await self._lost_event.wait()
        return self._hold.lost or "" if self._hold else ""

    async def checkpoint(self, step: str, *, url: str | None = None) -> None:
        """Record the last safe step: where another run could start over without harm."""
        url = self._redactor.url(url) if url else None
        await checkpoint_held(self._store, self._held(), step, url)
        self._last_url = url or self._last_url

    @asynccontextmanager
    async def mutating(self, name: str) -> AsyncIterator[None]:
        """A section that changes something for good. Vanishing inside it quarantines the profile.

        The section is left only if the block ends normally: after an exception nobody knows what was submitted.
        """
        hold = self._held()
        await enter_held(self._store, hold, name)
        yield
        await leave_held(self._store, hold, name)

    async def user_data_dir(self) -> Path:
        """The profile's directory on this machine, made if need be, for your browser alone while you hold the lease.

        Raises Fail if a browser is in it, or if it is not the profile's as the store knows it. Call `closed` when your
        browser is closed: the directory is then remembered as it is, and what you did is no manual use.
        """
        from leasekeeper.browsers.checkout import StrangeDirectory

        self.check()
        if self._refused is not None:
            raise self._refused  # what a person has to look at is not to be had by asking twice
        if self._borrowed is None:
            try:
                borrowed = await self._borrow()
            except StrangeDirectory as strange:
                self._refused, self._fence = strange, strange.fence
                raise
            try:
                await self._refuse_manual_use(borrowed)
            except BaseException:
                borrowed.let_go()
                raise
            self._borrowed = borrowed
        return self._borrowed.path

    async def _borrow(self) -> "Borrowed":
        """The directory. If we are cancelled while it is being taken, that takes a moment more, and it is let go."""
        from leasekeeper.runtime.borrowing import Borrowed

        taking = asyncio.ensure_future(aside(Borrowed, self.grant, self._data_dir))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_unwanted)
            await asyncio.wait({taking})
            raise

    async def _refuse_manual_use(self, borrowed: "Borrowed") -> None:
        """If somebody used the profile outside a lease, say so; then go on or leave it to a person, as configured."""
        policy, found = self.grant.profile.manual_use, borrowed.manual_use
        if not found:
            return
        await self._store.record(manual_use(self.lease, found, policy, datetime.now(UTC)))
        await aside(borrowed.accept)  # what was told once is known: the next run must not find it again
        by_person = self._request.purpose in (Purpose.MANUAL, Purpose.INSPECT)
        if policy is not ManualUse.ACCEPT and not by_person:
            self._refused = Fail("MANUAL_USE_DETECTED", found)
            raise self._refused

    def closed(self, *, final_url: str | None = None) -> None:
        """Say that your browser was closed cleanly, and where it was. Then even a failed run ends explained."""
        browser = Browser.CLOSED if final_url is not None else Browser.NONE
        self._closed = EndFacts(browser=browser, final_url=self._redactor.url(final_url) if final_url else None)

    async def release(
        self, reason: str | None = None, message: str = "", *, output: Mapping[str, object] | None = None
    ) -> Settled:
        """End the run: completed, or stopped for a reason. Raises LeaseLost if the lease is not ours any more."""
        return await self._end(reason, message, self._closed or EndFacts(browser=Browser.NONE), output)

    async def _end(
        self, reason: str | None, message: str, facts: EndFacts, output: Mapping[str, object] | None
    ) -> Settled:
        hold = self._held()
        hold.status = LeaseStatus.RELEASING
        self._ending = True
        if self._refused is not None and _frees(reason):
            # The program was refused its directory, and goes on as if nothing were: a person has to look all the same.
            reason, message = self._refused.reason, self._refused.detail
        row = None if reason is None else handed_in(reason, {})
        doubt = "" if reason is None else unknown(reason, {})
        message = f"{message} ({doubt})" if message and doubt else message or doubt
        message = self._redactor.short(message, MOST_MESSAGE)
        try:
            facts, engine = await self._look_at_directory(facts)
            ending = Ending(
                ref=self.lease.ref,
                reason=reason,
                message=message,
                facts=facts,
                registered=row,
                output=output,
                engine=engine,
                fence=self._fence,
            )
            settled = await settle_held(self._store, ending, hold)
        except LeaseLost:
            self._let_go()
            raise
        except BaseException:
            self._ending = False  # nothing was settled: the lease goes on, and may be released in another way
            raise
        self._settled = settled
        self._let_go()
        if settled.refused is not None:
            raise LeaseLost(
                f"lease {settled.lease_id}: {settled.refused}; the ending was not accepted, and profile "
                f"{self.lease.profile_id} is left to its release policy"
            )
        return settled

    async def _look_at_directory(self, facts: EndFacts) -> tuple[EndFacts, int | None]:
        """What the directory tells of the ending, if the program asked for it; and of the browser that it opened."""
        borrowed = self._borrowed
        if borrowed is None or facts.browser is Browser.NOT_PROVEN:
            return facts, None
        if facts.browser is Browser.NONE and await aside(borrowed.untouched):
            return facts, None
        if facts.browser is Browser.NONE:
            failing = "closed() was not called" if self._closed is None else "closed() was called without final_url"
        else:
            failing = await aside(borrowed.seal)
        if failing:
            unproven = EndFacts(browser=Browser.NOT_PROVEN, failing_clause=failing, final_url=facts.final_url)
            return unproven, None
        return facts, await aside(lambda: borrowed.engine)


def _unwanted(taking: "asyncio.Future[Borrowed]") -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result().let_go()


def _frees(reason: str | None) -> bool:
    """Whether a run that ends for this reason may leave its profile to the next one."""
    rule = ProfileRule.AVAILABLE if reason is None else handed_in(reason, {}).profile
    return rule not in (ProfileRule.REVIEW_REQUIRED, ProfileRule.QUARANTINED)
