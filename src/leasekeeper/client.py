"""Leasekeeper for programs: submit jobs, lease a profile, read every record.

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
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from leasekeeper import config as settings
from leasekeeper.browsers.machine_name import known_machine_name
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.events import manual_use
from leasekeeper.core.failures import Reason, handed_in, unknown
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.leases import BY_PERSON, Lease, LeaseStatus, Mode, Purpose
from leasekeeper.core.notes import NoteAbout
from leasekeeper.core.profiles import ManualUse, ReleasePolicy
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.core.why import explain
from leasekeeper.core.why_answer import Why
from leasekeeper.errors import Conflict, Fail, InputError, LeaseLost
from leasekeeper.evidence.redact import MAX_MESSAGE, Redactor
from leasekeeper.ports import Grant, LeaseRequest, Page, Settled, Store, Submitted
from leasekeeper.runtime import tracing
from leasekeeper.runtime.direct_input import choice_of, frees_profile, note_of, span_of
from leasekeeper.runtime.direct_leases import acquire_waiting
from leasekeeper.runtime.heartbeat import (
    Heartbeat,
    KeptLease,
    checkpoint_with_retries,
    enter_section_with_retries,
    leave_section_with_retries,
    note_with_retries,
    settle_with_retries,
)
from leasekeeper.runtime.lost_leases import LostLeases
from leasekeeper.stores import absolute, open_store
from leasekeeper.threads import run_in_thread
from leasekeeper.wire import parse_jobs
from leasekeeper.wording import REFUSALS

if TYPE_CHECKING:
    from leasekeeper.core.browsers import Credentials
    from leasekeeper.runtime.direct_directory import DirectDirectory
    from leasekeeper.runtime.leased_browser import LeasedBrowser
    from leasekeeper.runtime.saving import Snapshots

T = TypeVar("T")


@asynccontextmanager
async def connect(store: str | None = None, **overrides: str | float) -> AsyncIterator["Client"]:
    """Open a store by URL (or LEASEKEEPER_STORE, leasekeeper.toml, ./leasekeeper.db). Settings may be given by name."""
    if store is not None:
        overrides["store"] = store
    loaded = settings.load(**overrides)
    config = replace(loaded, store=absolute(loaded.store))
    opened = await open_store(config.store, policy=config.policy, token=config.token, ca=config.store_ca)
    client = Client(opened, config)
    try:
        yield client
    finally:
        await client.close()


class Client:
    """A program's connection to a store. `store` is the whole port, for what has no method here."""

    def __init__(self, store: Store, config: settings.Config) -> None:
        self.store = store
        self.config = config
        self.worker_id = WorkerId(f"{socket.gethostname()}-{os.getpid()}"[:128])
        self._incarnation = f"{self.worker_id}-{os.urandom(6).hex()}"
        opening = partial(open_store, config.store, policy=config.policy, token=config.token, ca=config.store_ca)
        self._heartbeat = Heartbeat(opening, config.policy.timing)
        self._lost_leases = LostLeases(store, config)

    async def close(self) -> None:
        """Stop renewing and close the store."""
        await run_in_thread(self._heartbeat.close)
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
            named = {"account_id": account, "profile_id": profile, "payload": payload}
            job |= {name: value for name, value in named.items() if value is not None}
        elif fields or account or profile or payload:
            raise InputError("give either a whole job or a task name with fields, not both")
        else:
            job = dict(task)
        return (await self.submit_many([job]))[0]

    async def submit_many(self, jobs: Sequence[Mapping[str, Any]]) -> list[Submitted]:
        """Submit up to 1,000 jobs, all or none."""
        with tracing.submitting(parse_jobs(list(jobs))) as traced:
            answers = await self.store.submit(traced.specs)
            traced.done(answers)
        return answers

    def lease(
        self,
        profile: str | None = None,
        *,
        pool: str | None = None,
        labels: Mapping[str, str] | None = None,
        purpose: Purpose | str = Purpose.API,
        mode: Mode | str = Mode.EXCLUSIVE,
        ttl: timedelta | float | None = None,
        release_policy: ReleasePolicy | str | None = None,
        wait: timedelta | float | None = None,
        worker_id: str | None = None,
    ) -> "HeldLease":
        """A lease of one profile, as a context manager. With `wait`, retries until it is free, at most for that long.

        `ttl` and `wait` are seconds or a timedelta. An expired lease of the profile is ended and resolved first. With
        `pool` or `labels` instead of a profile: any free one that matches, the least recently used one.
        """
        waits, choice = span_of("wait", wait or 0), choice_of(profile, pool, labels)
        request = replace(
            self._request(profile, purpose, ttl),
            worker_id=WorkerId(worker_id) if worker_id else self.worker_id,
            mode=Mode(mode),
            release_policy=ReleasePolicy(release_policy) if release_policy else None,
        )
        return HeldLease(self, self._heartbeat, self._lost_leases, request, waits, choice)

    def browser(
        self,
        profile: str | None = None,
        *,
        pool: str | None = None,
        labels: Mapping[str, str] | None = None,
        wait: timedelta | float | None = None,
        ttl: timedelta | float | None = None,
        headless: bool = True,
        max_duration: timedelta | float | None = None,
    ) -> "LeasedBrowser":
        """A leased profile with its browser open behind a keeper, as a context manager: `browser.page`.

        Profile, pool, labels, wait and ttl are those of `lease`. Once the lease is lost, nothing that the program sends
        reaches the browser. At the end of the block it is closed with proof, and evidence is saved.
        """
        from leasekeeper.runtime.leased_browser import LeasedBrowser
        from leasekeeper.runtime.session_terms import SessionTerms

        longest = None if max_duration is None else span_of("max_duration", max_duration)
        terms, choice = SessionTerms(headless=headless, max_duration=longest), choice_of(profile, pool, labels)
        request, waits = self._request(profile, Purpose.SESSION, ttl), span_of("wait", wait or 0)
        leases = self._heartbeat, self._lost_leases
        return LeasedBrowser(self.store, self.config, *leases, request, choice=choice, wait=waits, terms=terms)

    def _request(self, profile: str | None, purpose: Purpose | str, ttl: timedelta | float | None) -> LeaseRequest:
        return LeaseRequest(
            profile_id=ProfileId(profile or ""),
            worker_id=self.worker_id,
            incarnation=self._incarnation,
            purpose=Purpose(purpose),
            ttl=None if ttl is None else span_of("ttl", ttl),
            machine=known_machine_name(self.config.browsers),
        )

    async def note(self, text: str, *, profile: str | None = None, account: str | None = None, by: str = "") -> None:
        """Write a note on a profile or an account. Under a lease, `lease.note` says which run wrote it."""
        await self.store.decide(note_of(text, profile, account, by or self.worker_id))

    async def why(self, *, job: str | None = None, profile: str | None = None) -> Why:
        """Why a job does not run, or a profile is not available, in codes, ids and times. `why_text` makes it text."""
        return explain(await self.store.why(job_id=job, profile_id=profile))

    async def get(self, kind: type[T], record_id: str) -> T:
        """One record by id: `await client.get(Job, job_id)`."""
        return await self.store.get(kind, record_id)

    async def find(self, kind: type[T], *, after: str | None = None, limit: int = 100, **where: str) -> Page[T]:
        """A page of records: `await client.find(Job, state="blocked", account_id="store_us_018")`."""
        return await self.store.find(kind, where, after=after, limit=limit)


class HeldLease:
    """A lease while it is held: renewed automatically, released with an outcome at the end.

    Leaving the block normally, or with `Fail`, explains the ending. Any other exception does not, unless `closed` was
    called: the profile then leaves the rotation until a rule or a person puts it back. Before the directory or launch
    options were given out, and before any step was recorded, nothing can have touched the profile: it stays available.
    """

    def __init__(
        self,
        client: Client,
        heartbeat: Heartbeat,
        lost_leases: LostLeases,
        request: LeaseRequest,
        wait: timedelta,
        choice: ProfileChoice | None = None,
    ) -> None:
        self._choice = choice
        self._store = client.store
        self._lost_leases = lost_leases
        self._secrets = client.config.secrets
        self._browsers = client.config.browsers
        self._data_dir = Path(self._browsers.data_dir).absolute()
        self._heartbeat = heartbeat
        self._request = request
        self._wait = wait
        self._entered = False
        self._grant: Grant | None = None
        self._kept: KeptLease | None = None
        self._directory: DirectDirectory | None = None
        self._used = False  # the program was given the directory, or said that it does something in the profile
        self._actual: Mapping[str, str] | None = None  # set once launch options were given out
        self._refused: Fail | None = None
        self._directory_token: int | None = None
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
            raise self._not_held(f"profile {self._request.profile_id} is not leased yet: use 'async with'")
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
            raise self._not_held("this lease was used already: ask the client for another one")
        self._entered = True
        try:
            await self._enter()
        except BaseException:
            self._entered = False
            raise
        return self

    async def _enter(self) -> None:
        self._heartbeat.start()
        self._grant, sent_at = await acquire_waiting(
            self._store, self._lost_leases, self._request, self._choice, self._wait
        )
        self._request = replace(self._request, profile_id=self._grant.lease.profile_id)
        loop = asyncio.get_running_loop()

        def lease_lost(_why: str) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._lost_event.set)

        self._kept = self._heartbeat.keep(self._grant.lease, sent_at, lease_lost)

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
                doubtful = Browser.NOT_PROVEN if self._used else Browser.NONE
                unexplained = EndFacts(browser=doubtful, final_url=self._last_url)
                await self._end(Reason.TASK_ERROR, type(error).__name__, self._closed or unexplained, None)
        except LeaseLost as lost:
            if error is None:
                raise
            error.add_note(str(lost))
        finally:
            self._stop_renewing()

    def _stop_renewing(self) -> None:
        """The lease is over: stop its heartbeat and unlock the directory."""
        self._heartbeat.drop(self._held())
        if self._directory is not None:
            self._directory.taken.release()

    def check(self) -> None:
        """Raise LeaseLost if the profile must not be touched any more. Cheap: call it before every step."""
        self._held().check()

    def _held(self) -> KeptLease:
        if self._kept is None:
            raise self._not_held(f"profile {self._request.profile_id} is not leased")
        return self._kept

    def _not_held(self, message: str) -> Conflict:
        return Conflict(message, cause=ConflictReason.LEASE_NOT_HELD, profile_id=self._request.profile_id)

    async def lost(self) -> str:
        """Wait until the lease is lost, and return why. For a task that supervises another."""
        await self._lost_event.wait()
        return self._kept.lost or "" if self._kept else ""

    async def checkpoint(self, step: str, *, url: str | None = None) -> None:
        """Record the last safe step: where another run could start over without harm."""
        self._used = True
        url = self._redactor.url(url) if url else None
        await checkpoint_with_retries(self._store, self._held(), step, url)
        self._last_url = url or self._last_url

    async def note(self, text: str, *, about: NoteAbout | str = NoteAbout.PROFILE) -> None:
        """Write a note on the profile, or with `about="account"` on its account. Nothing else changes."""
        await note_with_retries(self._store, self._held(), self._redactor.text(text), NoteAbout(about))

    @asynccontextmanager
    async def mutating(self, name: str, *, idempotent: bool = False) -> AsyncIterator[None]:
        """A section that changes something for good. A program that dies inside it leaves the profile quarantined.

        The section is left only if the block ends normally: after an exception nobody knows what was submitted.
        """
        kept = self._held()
        self._used = True
        await enter_section_with_retries(self._store, kept, name, idempotent=idempotent)
        yield
        await leave_section_with_retries(self._store, kept, name)

    async def launch_options(self, *, headless: bool = True, args: Sequence[str] = ()) -> dict[str, Any]:
        """All that the profile declares, for `launch_persistent_context(**options)`: the directory, the proxy with its
        login, language, time zone, window and arguments, the browser as workers find it, and a clean environment.

        The proxy's password is in it: do not log it. `args` are further arguments for the browser. Raises Fail as
        `user_data_dir` does, and if the proxy or the browser is not as the profile needs it.
        """
        from leasekeeper.runtime.direct_launch import prepare_launch

        self.check()
        launch = await prepare_launch(self._store, self.grant, self._browsers, self._redactor, args)
        directory = await self._use_directory(launch.browser.engine)
        options = launch.options(directory.path, headless=headless)
        await run_in_thread(directory.taken.forget_tabs)
        self._used, self._actual = True, launch.actual(headless=headless)
        return options

    async def user_data_dir(self) -> Path:
        """The profile's directory on this machine, created if missing, for your browser alone while you hold the lease.

        Use `launch_options` instead if Playwright launches the browser: a directory alone has neither the profile's
        proxy nor its language. Raises Fail if a browser uses it, or if it is not the directory that the store has a
        record of. Call `closed` when your browser is closed: the store then remembers its state, and the next run does
        not report your changes as manual use.
        """
        self.check()
        directory = await self._use_directory(None)
        self._used = True
        return directory.path

    async def _use_directory(self, engine: int | None) -> "DirectDirectory":
        from leasekeeper.browsers.profile_directory import StrangeDirectory
        from leasekeeper.driver_port import CannotOpen
        from leasekeeper.runtime.direct_directory import take_in_thread

        if self._refused is not None:
            raise self._refused  # asking twice does not get a profile that a person has to check
        if self._directory is None:
            try:
                await self._snapshots.bring(self.grant, self._held(), by_person=self._request.purpose in BY_PERSON)
                directory = await take_in_thread(self.grant, self._data_dir, engine)
            except (StrangeDirectory, CannotOpen) as strange:
                self._refused, self._directory_token = strange, strange.directory_token
                raise
            try:
                await self._refuse_manual_use(directory)
            except BaseException:
                directory.taken.release()
                raise
            self._directory = directory
        return self._directory

    @cached_property
    def _snapshots(self) -> "Snapshots":
        from leasekeeper.runtime.saving import Snapshots

        return Snapshots(self._store, self._browsers, self._redactor)

    async def _refuse_manual_use(self, directory: "DirectDirectory") -> None:
        """Record a use of the profile outside any lease; then go on, or leave it to a person, as configured."""
        policy, found = self.grant.profile.manual_use, directory.manual_use
        if not found:
            return
        await self._store.record(manual_use(self.lease, found, policy, datetime.now(UTC)))
        await run_in_thread(directory.taken.accept)  # it is in the log: the next run must not report it again
        if policy is not ManualUse.ACCEPT and self._request.purpose not in BY_PERSON:
            self._refused = Fail(Reason.MANUAL_USE_DETECTED, found)
            raise self._refused

    async def proxy_credentials(self) -> "Credentials | None":
        """User and password for the profile's proxy, if it has any: from the environment, a file, or the store.

        A stored secret is handed out while the lease is live, and needs the key here. Raises InputError or LeaseLost.
        """
        from leasekeeper.runtime.secrets import proxy_credentials

        self.check()
        found = await proxy_credentials(self._store, self.grant, self._secrets)
        if found is not None:
            self._redactor.add(found.password, found.basic)
        return found

    def closed(self, *, final_url: str | None = None) -> None:
        """Say that your browser was closed cleanly, and its last URL. Then even a failed run ends explained."""
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
        kept = self._held()
        kept.status = LeaseStatus.RELEASING
        self._ending = True
        if self._refused is not None and frees_profile(reason):
            # The program was refused the directory and went on anyway: a person still has to check the profile.
            reason, message = self._refused.reason, self._refused.detail
        row = None if reason is None else handed_in(reason, {})
        doubt = "" if reason is None else unknown(reason, {})
        message = f"{message} ({doubt})" if message and doubt else message or doubt
        message = self._redactor.short(message, MAX_MESSAGE)
        try:
            engine = None
            if self._directory is not None:
                facts, engine = await self._directory.facts_at_end(facts, said_closed=self._closed is not None)
            ending = Ending(
                ref=self.lease.ref,
                reason=reason,
                message=message,
                facts=facts,
                registered=row,
                output=output,
                actual=self._actual or {},
                engine=engine,
                directory_token=self._directory_token,
                proxy_used=self._actual is not None,
            )
            if engine is not None:
                ending = await self._snapshots.saved(ending, self.grant, kept, locked=True)
            settled = await settle_with_retries(self._store, ending, kept)
        except LeaseLost:
            self._stop_renewing()
            raise
        except BaseException:
            self._ending = False  # nothing was settled: the lease goes on, and may be released in another way
            raise
        self._settled = settled
        self._stop_renewing()
        if settled.refused is not None:
            raise LeaseLost(
                f"lease {settled.lease_id}: {REFUSALS[settled.refused]}; the ending was not accepted, and profile "
                f"{self.lease.profile_id} is left to its release policy",
                refusal=settled.refused,
                lease_id=settled.lease_id,
                profile_id=self.lease.profile_id,
            )
        return settled
