"""Who has control of a browser that this server shows; take it, hand it back to its task, release it.

The pages and the API do the same thing here. What may be done is the token's: `operate` for the run's account.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from leasekeeper.app import HumanAnswer
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.tokens import ApiToken, Needs, Reach, Scope, denial
from leasekeeper.errors import NotFound
from leasekeeper.runtime.live_runs import LiveRun, live_run, live_run_of, not_taken
from leasekeeper.runtime.person import Closed, Person
from leasekeeper.runtime.remote_live import RemoteLive
from leasekeeper.runtime.session_host import HostedSession
from leasekeeper.service.permissions import refuse
from leasekeeper.service.run_targets import answer_in_store, asked, named_run, not_open, not_reached

if TYPE_CHECKING:
    from leasekeeper.service.state import Service

OPERATE: Final = Needs(Scope.OPERATE, Reach.TARGET)
# What a person may decide on the spot, when they release a browser that they have taken.
JOB_CHOICES: Final = (Action.REQUEUE, Action.CANCEL)
PROFILE_CHOICES: Final = (Action.REVIEW, Action.QUARANTINE, Action.DISABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlView:
    """Who has control of a browser. `run_id` is the run that has it now; `human`: a person has.

    `asks` is what its task waits for a person to do; `may_hand_back`: the task can go on. `may_take` is false if a
    person has it, or if its browser is on a worker that is not connected to this server: its task can then only be
    answered.
    """

    run_id: str
    profile_id: str
    lease_id: str
    token: int
    holder: str
    human: bool
    since: datetime
    note: str = ""
    asks: str | None = None
    may_hand_back: bool = False
    may_take: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A browser that a person had is closed. `profile_state` is the profile's new state; None: the lease was lost."""

    run_id: str
    profile_id: str
    profile_state: str | None
    reason: str | None
    message: str


class Browser:
    """A browser that this server shows: of a job or of a session, here or on a worker that is connected.

    With `away` it cannot be shown, and its run asks for a person: the answer goes through the store.
    """

    def __init__(
        self,
        service: "Service",
        live: LiveRun | RemoteLive | None = None,
        session: HostedSession | None = None,
        away: Lease | None = None,
    ) -> None:
        self._service = service
        self.live = live
        self.session = session
        self.away = away

    @property
    def person(self) -> Person | None:
        """The person who has taken it."""
        if self.live is not None:
            return self.live.person
        return None if self.session is None else self.session.run.person

    @property
    def lease(self) -> Lease:
        """The present lease."""
        if self.live is not None:
            return self.live.lease
        if self.away is not None:
            return self.away
        if self.session is None:
            raise NotFound("there is no browser", what="run")
        return self.session.run.lease

    def may_act(self, token: ApiToken) -> bool:
        """Whether input of this person reaches the browser: in a session, or once a person has control."""
        if denial(token, OPERATE, account=self.lease.account_id, pool=self.lease.pool) is not None:
            return False
        return self.away is None and (self.live is None or self.live.person is not None)

    def view(self) -> ControlView:
        lease, person = self.lease, self.person
        live, session = self.live, self.session
        asks = live.wants if live is not None else session.asks if session is not None else asked(lease)
        return ControlView(
            run_id=lease.run_id,
            profile_id=lease.profile_id,
            lease_id=lease.lease_id,
            token=lease.token,
            holder=person.name if person is not None else lease.worker_id,
            human=person is not None,
            since=lease.acquired_at,
            note=person.note if person is not None else "",
            asks=asks,
            may_hand_back=live.may_hand_back if live is not None else asks is not None,
            may_take=person is None and self.away is None,
        )

    async def take(self, token: ApiToken, note: str) -> ControlView:
        """Give the bearer of this token control. Raises Conflict if a person already has it."""
        refuse(denial(token, OPERATE, account=self.lease.account_id, pool=self.lease.pool))
        person = Person(name=token.name, note=note)
        if self.away is not None:
            raise not_reached(self.away)
        if self.live is not None:
            await self.live.take(person)
        elif self.session is not None:
            self.session = await self._service.sessions.take(self.session, person, token.token_id)
        return self.view()

    async def hand_back(self, token: ApiToken, note: str, outcome: str) -> ControlView:
        """Let the task or agent continue that asked for a person, or whose browser a person has taken."""
        refuse(denial(token, OPERATE, account=self.lease.account_id, pool=self.lease.pool))
        answer = HumanAnswer(by=token.name, note=note, outcome=outcome)
        if self.away is not None:
            self.away = await answer_in_store(self._service.store, self.away, answer)
        elif self.live is not None:
            await self.live.hand_back(answer)
        elif self.session is not None:
            self.session = await self._service.sessions.hand_back(self.session, answer)
        return self.view()

    async def release(self, token: ApiToken, note: str, *, job: Action | None, profile: Action | None) -> Released:
        """Close a browser that a person has, and decide about its job and its profile."""
        lease = self.lease
        refuse(denial(token, OPERATE, account=lease.account_id, pool=lease.pool))
        if self.person is None:
            raise not_taken(lease)
        job_id = self.live.job_id if self.live is not None else None
        said = note or f"released by {token.name}"
        actor = f"{token.name} ({token.token_id})"
        decisions = []
        if profile is not None:
            decisions.append(
                Decision(target=Target.PROFILE, id=lease.profile_id, action=profile, note=said, actor=actor)
            )
        if job is not None and job_id is not None:
            decisions.append(Decision(target=Target.JOB, id=job_id, action=job, note=said, actor=actor))
        for decision in decisions:
            await self._service.permissions.check(token, "decide", {"decision": decision})
        for decision in [each for each in decisions if each.target is Target.PROFILE]:
            await self._service.store.decide(decision)  # it takes effect when the lease ends
        end = await self._closed(said)
        for decision in [each for each in decisions if each.target is Target.JOB]:
            await self._service.store.decide(decision)
        return Released(
            run_id=lease.run_id,
            profile_id=lease.profile_id,
            profile_state=end.profile_state,
            reason=end.reason,
            message=end.message,
        )

    async def _closed(self, message: str) -> Closed:
        """Close the browser that a person has, and wait until their run is settled."""
        if self.live is not None:
            return await self.live.release(message)
        if self.session is None:
            raise not_taken(self.lease)
        run = self.session.run
        run.release(message=message)
        end = await run.ended()
        return Closed(
            reason=end.reason if end is not None else None,
            message=end.message if end is not None else "",
            profile_state=run.profile_state,
        )


def find_browser(service: "Service", run_id: str) -> Browser | None:
    """The browser that this run has or had, if it is still open here."""
    session = service.sessions.get(run_id)
    while session is not None and (following := service.sessions.following(session)) is not None:
        session = following
    if session is not None:
        return None if session.over else Browser(service, session=session)
    live = service.sessions.live_run(run_id) or live_run(run_id)
    return None if live is None else Browser(service, live)


def open_browser(service: "Service", run_or_profile: str) -> Browser | None:
    """The browser of a run, or the one that is open in a profile."""
    found = find_browser(service, run_or_profile)
    if found is not None:
        return found
    live = service.sessions.live_run_of(run_or_profile) or live_run_of(run_or_profile)
    if live is not None:
        return Browser(service, live)
    for session in service.sessions.sessions:
        if session.run.lease.profile_id == run_or_profile and not session.over:
            return Browser(service, session=session)
    return None


async def target_of(service: "Service", named: str) -> Browser | RunRecord:
    """The browser of a run, profile or job; its run, if that is not open here. Raises NotFound."""
    found = open_browser(service, named)
    if found is not None:
        return found
    run = await named_run(service.store, named)
    return find_browser(service, run.run_id) or await asking_away(service, run) or run


async def asking_away(service: "Service", run: RunRecord) -> Browser | None:
    """A run whose browser is not open here, if it asks for a person: it can be answered through the store."""
    if run.ended_at is not None:
        return None
    lease = await service.store.get(Lease, run.lease_id)
    return Browser(service, away=lease) if asked(lease) is not None else None


async def browser_of(service: "Service", named: str) -> Browser:
    """The browser of a run, profile or job. Raises NotFound, or what says why it is not here (see `not_open`)."""
    found = await target_of(service, named)
    if isinstance(found, RunRecord):
        raise not_open(found)
    return found
