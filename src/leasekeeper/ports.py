"""The interface between the rules and the stores: read this file to know what Leasekeeper promises. The other
interface, to browsers, is in `driver_port.py`.

`Store` is 48 domain operations, all mandatory, batch-shaped, frozen values in and out. On every store each guarantees:

- One operation is one commit: all of it is done, or nothing. Its events are in the same commit (I10).
- The clock is the store's. No argument carries a caller's time into lease arithmetic.
- A write that depends on a lease is accepted only while that very lease is live and the token is its own; one
  atomic check. A refused write changes nothing but the log: event `stale_worker_write_rejected` (I3). But an available
  profile goes to review if the store granted that lease and lost its record: lost writes, a restored backup (I7).
- A lost answer is recovered by reading, never by doing the work again (I4, I8); `once` keeps answers for that.
- Losing a race is a value (an empty claim, a refusal); an exception means nothing was done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from leasekeeper.core.accounts import Account, Proxy
from leasekeeper.core.alerts import Endpoint, NewEndpoint
from leasekeeper.core.calls import Request
from leasekeeper.core.control import PersonAnswer, TransferRequest
from leasekeeper.core.decisions import Decision
from leasekeeper.core.deliveries import Attempt, Delivery, DeliveryRequest
from leasekeeper.core.events import Event
from leasekeeper.core.fleet import Change, Fleet
from leasekeeper.core.free_profiles import FreeProfiles, ProfileChoice
from leasekeeper.core.ids import LeaseId, ProfileId, RunId, WorkerId
from leasekeeper.core.jobs import Job, JobSpec, JobState
from leasekeeper.core.leases import Lease, LeaseRef, LeaseStatus, Mode, Purpose, Refusal
from leasekeeper.core.notes import NoteAbout
from leasekeeper.core.policy import Retention
from leasekeeper.core.profiles import Profile, ProfileState, ReleasePolicy
from leasekeeper.core.proxies import ProxyReport
from leasekeeper.core.records import quick_init
from leasekeeper.core.schedules import Fired
from leasekeeper.core.secrets import LeaseSecret, SealedSecret, Secret
from leasekeeper.core.settle import Ending, LostFacts, Settlement
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.core.tokens import ApiToken, NewToken, StoredToken
from leasekeeper.core.why_facts import WhyFacts
from leasekeeper.core.workers import Worker, WorkerReport

T = TypeVar("T")

MAX_IN_BATCH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """What a store is: its kind, its schema, its clock."""

    kind: str
    location: str
    schema: int
    newest_schema: int
    now: datetime
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The answer to one job. `already_handled`: the key was known, this is the first job; `asked_id` was wanted."""

    job: Job
    already_handled: bool = False
    decision: str | None = None
    asked_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """A worker asks for up to `limit` jobs of its pool whose task it knows and that are safe to run now.

    `machine` is where it works: it gets no profile whose directory is on another one (see `core.homes`).
    """

    worker_id: WorkerId
    incarnation: str
    tasks: tuple[str, ...]
    pool: str = "default"
    limit: int = 1
    engine: int | None = None
    machine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """A request for one profile, without a job. `again`: a retry, whose first refusal is in the log.

    `machine`: where they would open its directory; None: nowhere.
    """

    profile_id: ProfileId
    worker_id: WorkerId
    incarnation: str
    purpose: Purpose = Purpose.API
    mode: Mode = Mode.EXCLUSIVE
    ttl: timedelta | None = None
    release_policy: ReleasePolicy | None = None
    engine: int | None = None
    machine: str | None = None
    again: bool = False


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A lease with everything needed to use it.

    `engine` is the version of the browser that opened the profile last; None if none did, or a person has accepted an
    empty directory since: only then may it be empty.

    Where the profile's newest state is: with `unsaved_on`, in the directory on that machine, whatever snapshots there
    are; workers of other machines are not granted the profile. Otherwise in `newest`, if there is one: a directory may
    be opened only if it holds the snapshot of that token, and else is replaced by it first. With neither, no run has
    opened the profile yet. `profile_store` is where snapshots are, as the fleet declares it; None: nothing is uploaded.
    """

    lease: Lease
    profile: Profile
    account: Account
    proxy: Proxy | None = None
    job: Job | None = None
    engine: int | None = None
    newest: Snapshot | None = None
    unsaved_on: str | None = None
    profile_store: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """One heartbeat. `status` RELEASING: the run is over and its evidence is being saved."""

    ref: LeaseRef
    status: LeaseStatus = LeaseStatus.RUNNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """The answer to one heartbeat: the new expiry, or why it was refused. `answer`: a person's, to a run that asks."""

    lease_id: LeaseId
    expires_at: datetime | None = None
    answer: PersonAnswer | None = None
    refused: Refusal | None = None


@quick_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The result of one ending. With `refused` set, nothing changed."""

    lease_id: LeaseId
    run_id: RunId | None = None
    refused: Refusal | None = None
    settlement: Settlement | None = None
    job_state: JobState | None = None
    profile_state: ProfileState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """One run ended and the next one of its profile began. Without a grant the ending was refused."""

    settled: Settled
    grant: Grant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The facts found about a run whose holder vanished."""

    lease_id: LeaseId
    facts: LostFacts = LostFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What a decision led to: the record's new state and version."""

    state: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """One page of a list. `after` continues it; None: this was the last one."""

    items: Sequence[T]
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Current counts: jobs by state and by blocked reason, profiles by state, live leases by pool, undelivered webhooks
    by state. Of pending ones: since when the first is due, and when one was last tried.
    """

    jobs: Mapping[str, int] = field(default_factory=dict)
    blocked: Mapping[str, int] = field(default_factory=dict)
    profiles: Mapping[str, int] = field(default_factory=dict)
    leases: Mapping[str, int] = field(default_factory=dict)
    reviews: int = 0
    webhooks: Mapping[str, int] = field(default_factory=dict)
    webhooks_due_at: datetime | None = None
    webhooks_tried_at: datetime | None = None
    now: datetime


class Store(Protocol):
    """The store. Implementations: SQLite (embedded), PostgreSQL (fleet), Redis, HTTP (any of them, behind a server)."""

    async def check(self) -> StoreInfo:
        """The store's kind, schema and clock. Raises StoreError if it cannot be used."""

    async def close(self) -> None:
        """Close all connections. Live leases stay live until they are released or expire."""

    def once(self, request: Request) -> "Store":
        """This store, for one operation that may be repeated because its answer may be lost: the next one.

        If it changed something, its answer is kept in the same commit, which a restart survives. The same request
        again changes nothing: it gets that answer, its records as they now are, also while the first is under way or
        in another process. Of a claim, leases that have ended since are left out. Raises Conflict if the slot was used
        for another call, or for a later one, or if the answer was above MAX_ANSWER_BYTES; NotFound for attempt `ask` if
        there is no answer. An error, and an answer of nothing (no grant, nothing expired), is not kept: nothing was
        done. Kept for ANSWERS_KEPT, then `prune` deletes it. No answer that is kept holds a secret or a payload.
        """

    async def apply(
        self, fleet: Fleet, *, actor: str, prune: bool = False, dry_run: bool = False, expected: str | None = None
    ) -> list[Change]:
        """Put a fleet's configuration into force and return the difference. Idempotent; never touches runtime state.

        Jobs that were blocked by what changed move on in the same commit. With `prune`, records that it does not name
        are removed; refused if a profile to remove is leased or has open jobs. With `expected`, VersionConflict unless
        the fleet in force has this tag (`core.fleet.tag_of`)."""

    async def submit(self, specs: Sequence[JobSpec]) -> list[Submitted]:
        """Accept jobs, all or none. Idempotent by key: same key and body gives the first job back (I8).

        Each job is in a lane, scheduled or blocked when this returns; a job that is due while its profile is
        taken follows its `on_conflict`, with an event. The answer has the state that lists show: a job in a lane that
        cannot run now (account paused, profile quarantined …) is blocked, with its reason, and has an event of it.
        """

    async def claim(self, request: ClaimRequest) -> list[Grant]:
        """Up to `limit` jobs, each with the lease of its profile, token, routing key and limits: one commit.

        Never exceeds `max_active_runs`, a routing key or a pool's limit (I1). By priority, then by how long the lane
        waited; FIFO inside a lane. No profile whose directory is on another machine, unless it is saved and its job has
        waited for a worker there (`heal`). The cost does not depend on the number of jobs that cannot run, nor on that
        of machines. If the caller is cancelled before it has the answer, its grants are given back. Lanes found not
        ready are blocked on the way; many of them are commits before the one that grants. Jobs of a granted lane whose
        `on_conflict` is not `wait` follow it in the same commit, a few; `promote` takes the rest.
        """

    async def acquire(self, request: LeaseRequest) -> Grant:
        """Lease one profile without a job, under the same limits. Raises ProfileBusy with the reason and holder.

        A refusal because another run has the profile, or its account's key, is a conflict, with an event. With purpose
        `inspect` also one that is review_required, quarantined or disabled, once its earlier endings are explained; it
        returns to that state at the end, unless a person decides or the ending is worse. Exclusive.
        """

    async def free_profiles(
        self, choice: ProfileChoice, *, after: str | None = None, limit: int = 100, counted: bool = False
    ) -> FreeProfiles:
        """Free profiles, the least recently used first, or only counts. Locks nothing: `acquire` decides."""

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        """Heartbeats: each live lease now ends one TTL from the store's now. A refusal is a value."""

    async def checkpoint(self, ref: LeaseRef, step: str, *, url: str | None = None) -> None:
        """Record the last safe step (and the URL it was reached at). Raises LeaseLost if refused."""

    async def enter_section(self, ref: LeaseRef, name: str, *, idempotent: bool = False) -> None:
        """Open a mutating section. A holder that vanishes inside it quarantines the profile.

        While it is open, and after it was left until the next safe step, the run is not retried automatically, unless
        the section is declared idempotent.
        """

    async def leave_section(self, ref: LeaseRef, name: str) -> None:
        """Close the open mutating section. Raises Conflict if another one, or none, is open."""

    async def write_note(self, ref: LeaseRef, text: str, *, about: NoteAbout = NoteAbout.PROFILE) -> None:
        """A run writes a note on its profile, or on its account. Raises LeaseLost if refused. Event `note_added`.

        Idempotent: the same text of the same run is kept once. Of one subject the newest MAX_KEPT by runs are kept, and
        as many by people, who write theirs with `decide`.
        """

    async def settle(self, endings: Sequence[Ending]) -> list[Settled]:
        """End runs: evidence record, job (retry included), profile, lease, events, outbox, in one commit.

        Each ending is decided by `core.settle` from the records as they are under lock, so the last word on a
        profile's state is never the worker's. A snapshot that an ending names is the newest in the same commit, which
        says too where the newest directory is. A refused ending is a value and leaves the others alone.
        """

    async def hand_over(
        self, ending: Ending, request: ClaimRequest, *, among: Sequence[str] | None = None
    ) -> HandedOver | None:
        """Settle a completed run whose browser is still open, and grant the next job of its profile: one commit.

        The new lease has a token of its own; the profile is never free in between. None: no job of that profile waits
        that may run in this browser now (`among`: these tasks alone), or a more urgent one of any task of the request
        waits elsewhere, and nothing was done. Close the browser, then settle.
        """

    async def transfer(self, ending: Ending, to: TransferRequest) -> HandedOver:
        """End a run whose browser stays open, and lease its profile to another holder (to a person, or back to the job
        whose run a person has ended with `TAKEN_OVER`): one commit.

        Reason `TAKEN_OVER` puts the old run's job into review. The new lease has a token of its own; pool, routing key,
        mode and mutating section are as before; the profile is leased all the time. The same `incarnation` again gets
        the same grant. Without a grant the ending was refused. Raises Conflict if the job cannot go on now.
        """

    async def request_person(self, ref: LeaseRef, what: str | None) -> None:
        """The run asks for a person, by a review of its job or profile; None withdraws that, as does the end of its
        lease. Raises LeaseLost if refused. Idempotent.
        """

    async def expire(self, limit: int = MAX_IN_BATCH, *, seen: datetime | None = None) -> list[Lease]:
        """End leases that have expired: lease expired, profile stale (once no sharer is left). Frees nothing.

        `seen` is what the store's clock showed when the caller last compared it with its own: what was not over by then
        is left, since the clock may have jumped in between. Safe to run concurrently. Returns those that this call
        expired."""

    async def pause_expiry(self, span: timedelta, jump: timedelta) -> None:
        """The store's clock jumped: for this long no lease expires, nor is a write refused because one has.

        Every lease has its own TTL from now, whatever the jump left of it. Event `clock_jumped`.
        """

    async def unresolved(self, limit: int = MAX_IN_BATCH) -> list[Lease]:
        """Leases that ended without an explanation and wait for `resolve`, oldest first."""

    async def reserve_launcher_checks(self, lease_ids: Sequence[LeaseId], reserve_for: timedelta) -> list[LeaseId]:
        """Those of these whose launchers only this caller may ask for a while: unresolved, due, not granted again."""

    async def resolve(self, resolutions: Sequence[Resolution]) -> list[Settled]:
        """Resolve unexplained endings by `core.settle.resolve`: profile and job in one commit, once each.

        A lease whose lock-delay has not passed (nor can it, while expiry pauses), or that is resolved already, is left
        out of the answer. What a report says of an expired lease is kept with its run, and counts for who resolves it.
        So is one whose launcher does not say whether the browser still runs; `state_reason` says so."""

    async def promote(self, limit: int = MAX_IN_BATCH) -> int:
        """Move scheduled jobs that are due into their lanes (or to blocked, or by `on_conflict`). Then move jobs out of
        their lanes that do not want to wait while another run has their profile or account's key. Returns how many.

        The cost of the second does not depend on lanes without such jobs. A job's own run is never its conflict, and
        one that a person approved or put back waits."""

    async def fire(self, limit: int = MAX_IN_BATCH) -> list[Fired]:
        """Make the jobs of schedules whose time has come, by `core.schedules`: up to `limit` jobs in one commit.

        Each time of a schedule gives one job per profile, exactly once (key = schedule, time, profile), never before it
        is due, however many processes call it or crash: the schedule's position is in the same commit. Call it until it
        returns nothing. It also returns nothing while another process fires or applies a fleet.
        """

    async def heal(self, limit: int = MAX_IN_BATCH) -> int:
        """Wake lanes that wait for a free routing key (a wake-up was lost), end pauses that are over. Returns how many.

        All keys are checked, `limit` at a time. Lanes of saved profiles that are kept for the workers of a machine,
        with none there or for longer than `home_wait`, are open to the workers of any machine then."""

    async def forget_snapshots(self, snapshot_ids: Sequence[str]) -> int:
        """Delete the records of discarded snapshots, whose objects the caller has deleted. Returns how many went.

        `settle` discards what retention does not keep any more, and an object that no snapshot needs is then in
        `find(Snapshot, {"discarded": "1"})` until this is called, so if a caller dies another one finishes. Idempotent:
        unknown ids and snapshots that are not discarded are ignored. Event `snapshot_deleted`.
        """

    async def decide(self, decision: Decision) -> Decided:
        """A person's decision, version-checked, with a note; closes the record's open review.

        `restore` makes a snapshot the newest state of a profile that nobody has, under a token of its own. The first
        `answer` to a run that asks for a person counts; each renewal has it.
        A `pause` of `all`, `pool:NAME` or `worker:NAME`: nothing is granted there but to a person, until it is resumed
        or `until` has come by the store's clock. Of `account:ID`: the account is paused, and `heal` resumes it.
        Raises NotFound, VersionConflict, IllegalTransition, or Conflict (the lease was revoked already). Touches a
        constant number of rows, however many jobs wait behind the record.
        """

    async def take_deliveries(
        self, request: DeliveryRequest, reserve_for: timedelta, *, after: str = ""
    ) -> Page[Delivery]:
        """Webhook messages that are due, for the caller to send.

        For `reserve_for` no other caller gets them; then they are due again, since this caller may have died. The
        page's `after` continues with further hosts; a long backlog for one does not delay the others.
        """

    async def settle_deliveries(self, attempts: Sequence[Attempt]) -> list[Delivery]:
        """Record the results of sending: delivered, due again later, or exhausted; each end is an event (I10). An
        attempt that another sender has overtaken counts only if it was accepted. Returns the messages that changed.
        """

    async def add_endpoint(self, new: NewEndpoint, sealed: SealedSecret, *, actor: str) -> Endpoint:
        """Register a receiver of alerts with its signing secret, encrypted by the caller: one commit.

        From then on every commit that an alert of `core.alerts` comes from also holds a message to each active
        endpoint whose filters match (I10). Where there is no endpoint, no commit has a statement more. `decide` pings,
        disables, enables and removes it, its secret included; a receiver that answers 410 is disabled, with an event.
        Raises Conflict if the id is taken.
        """

    async def report(self, report: WorkerReport) -> None:
        """A worker runs (or stops), and offers these tasks in this pool. Frees jobs that waited for a worker."""

    async def mark_silent(self, limit: int = MAX_IN_BATCH) -> list[Worker]:
        """Mark workers that no longer report and did not stop: event `worker_silent`, once for each silence. Safe to
        run concurrently. Returns those that this call marked. If one reports again: `worker_returned`.
        """

    async def report_proxy(self, report: ProxyReport) -> Proxy | None:
        """The result of a proxy check: record its trouble, or that it is over, by `core.proxies`. While there is
        trouble, the lanes of its profiles are blocked, however many jobs wait; it uses up no attempt. When trouble
        begins, changes or ends there is one event, and for a mismatch one review, however many workers report it. A
        proxy that is declared anew counts as working until a check fails. Returns the proxy as it now is, or None if
        the report is about another declaration of it.
        """

    async def record(self, event: Event) -> None:
        """Write an event that goes with no other change. Its time is the store's."""

    async def get(self, kind: type[T], record_id: str) -> T:
        """One record by id. Raises NotFound."""

    async def find(
        self,
        kind: type[T],
        where: Mapping[str, str] | None = None,
        *,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[T]:
        """A page of records that match every filter, newest first where that makes sense. Paged by key.

        What can be listed, and by what, is in `lists.LISTS`. A filter that the kind does not have raises InputError
        with those it has.
        """

    async def create_token(self, new: NewToken, *, actor: str) -> ApiToken:
        """Keep a new token: the hash of its text, and never the text. `decide` revokes it. Event `token_created`."""

    async def stored_token(self, token_id: str) -> StoredToken | None:
        """One token with its hash and the store's time, in one read, to authenticate a call; None: no such token."""

    async def note_token_uses(self, token_ids: Sequence[str]) -> None:
        """These tokens were used just now. A commit of its own: call it in the background, and rarely."""

    async def reserve_call(self, key: str, spacing: timedelta, *, pause: timedelta = timedelta()) -> timedelta:
        """Reserve the next call to an API that several workers share (a rate limit). Returns how long to wait before
        making it. Calls of one key are at least `spacing` apart, in all processes. With `pause`, the API asked for no
        calls for that long: no call is reserved before that, and this reserves none.
        """

    async def put_secret(self, sealed: SealedSecret, *, actor: str, replaces: int | None = None) -> Secret:
        """Keep a secret, encrypted by the caller; an older value of that name is gone. Event `secret_stored`.

        With `replaces` only if the stored version is still that one: raises VersionConflict.
        """

    async def remove_secret(self, name: str, *, actor: str, note: str) -> None:
        """Delete a secret. Raises NotFound, or Conflict while a proxy names it. Event `secret_removed`."""

    async def sealed_secrets(self, names: Sequence[str]) -> list[SealedSecret]:
        """Those of the named secrets that exist, encrypted: for processes that have the key."""

    async def lease_secrets(self, ref: LeaseRef) -> list[LeaseSecret]:
        """The secrets that a live lease's proxy, or its job's payload (`secret:job-NAME`), names. Raises LeaseLost.

        A store that has the key itself answers with plain values, other stores with what the key of the caller opens.
        """

    async def stats(self) -> Stats:
        """Counts for people. Never slows a claim."""

    async def why(self, *, job_id: str | None = None, profile_id: str | None = None) -> WhyFacts:
        """All facts about one job or profile, read at one moment, for `core.why`. Raises NotFound."""

    async def wait(self, pool: str, timeout: timedelta) -> None:
        """Return when there may be work for the pool, or after `timeout`. May return early without any work."""

    async def prune(self, retention: Retention, limit: int = MAX_IN_BATCH) -> int:
        """Delete a batch of finished jobs (with their runs) and events older than the retention. Returns how many rows.

        Answers that `once` kept for ANSWERS_KEPT go too, and are not counted.
        """
