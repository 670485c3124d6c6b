"""The reference model: what a store must do, as plain Python over dictionaries, one call at a time.

Written from PRODUCT.md (sections 2 to 6 and 10) and the port's docstrings, not from a store. It knows no lanes, no
locks, no SQL and no cost. Where the text leaves a choice (which of two equal lanes comes first, how long the jitter
makes a delay) the model is given what the store chose and says whether it may.
"""

from collections.abc import Container
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.jobs import Backoff
from leasekeeper.core.leases import LeaseRef
from leasekeeper.core.settle import Browser, Ending, LostFacts
from leasekeeper.errors import Conflict, IllegalTransition, LeaseExpired, LeaseLost, NotFound, VersionConflict
from leasekeeper.ports import ClaimRequest
from tests.model.job_queue import Queue
from tests.model.records import Choice, Held, Side, Work
from tests.model.tables import DEFAULT_RULE, FAILURES, JOB_DECISIONS, PROFILE_DECISIONS, Rule

MAX_LOSSES = 2
FREE_GIVE_BACKS = 3
BACKOFF = Backoff()


def _end_of(side: Side) -> str:
    """Where a profile goes when its last lease ended and is explained."""
    if side.drain == "disabled":
        return side.drain
    return max((side.verdict, side.drain), key=[None, "review_required", "quarantined"].index) or "available"


class Model(Queue):
    """The whole store. Every method is one operation, at `now`."""

    # Holders write

    def holder(self, ref: LeaseRef, *, ever: bool = False) -> Held | None:
        """The lease that may write under this reference, if it may; or might, but for the time."""
        for held in self.leases:
            mine = held.ref == (ref.lease_id, ref.profile_id, ref.token) and held.key == ref.routing_key
            in_time = ever or held.expires > self.now or self.expiry_pauses
            if mine and held.ended is None and held.status != "revoked" and in_time:
                return held
        return None

    @property
    def expiry_pauses(self) -> bool:
        return self.now < self.expiry_resumes

    def pause_expiry(self, span: timedelta, jump: timedelta) -> None:
        """The clock jumped: it cannot tell whose time is up, and everybody has one TTL from now.

        After a jump back an earlier pause lies in the future: it counts no more.
        """
        earlier = self.now if jump < timedelta(0) else self.expiry_resumes
        self.expiry_resumes = max(earlier, self.now + span)
        for held in self.leases:
            if held.ended is None:
                held.expires = self.now + held.ttl

    def renew(self, ref: LeaseRef, status: str) -> datetime | None:
        held = self.holder(ref)
        if held is None:
            return None
        held.expires = self.now + held.ttl
        held.status = "releasing" if "releasing" in (status, held.status) else "running"
        return held.expires

    def checkpoint(self, ref: LeaseRef, step: str, url: str | None) -> None:
        held = self._writer(ref)
        held.step, held.url, held.left = step, url or held.url, None

    def enter_section(self, ref: LeaseRef, name: str, *, idempotent: bool = False) -> None:
        held = self._writer(ref)
        if held.section is not None:
            raise Conflict("sections do not nest")
        if held.shared and not self.profiles[held.profile].disposable:
            raise Conflict("a change needs the profile alone")
        held.section, held.idempotent = name, idempotent

    def leave_section(self, ref: LeaseRef, name: str) -> None:
        held = self._writer(ref)
        if held.section != name:
            raise Conflict("another section is open, or none")
        held.left = held.left if held.idempotent else name
        held.section, held.idempotent = None, False

    def _writer(self, ref: LeaseRef) -> Held:
        held = self.holder(ref)
        if held is None:
            raise (LeaseExpired if self.holder(ref, ever=True) else LeaseLost)("not live")
        return held

    # Runs end

    def settle(self, ending: Ending) -> Held | None:
        """A holder reports its ending; None: it was refused. A retry's time is in `retry_window`."""
        held = self.holder(ending.ref)
        if held is None or (ending.not_started and held.section is None and not held.may_be_done):
            return held and self._give_back(held, ending)
        facts, reason = ending.facts, ending.reason
        if reason is None and (held.section is not None or ending.not_started):
            reason = "TASK_ERROR"
        if reason is None and not facts.evidence_saved:
            reason = "EVIDENCE_NOT_SAVED"
        rule = FAILURES.get(reason, self._registered(ending)) if reason else Rule(retry="", profile="available")
        held.ended, held.status = self.now, "released"
        verdict, held.unresolved = self._verdict(held, ending, rule)
        if held.job is not None:
            retry = "yes" if reason == "TASK_ERROR" and ending.retry else rule.retry
            self._end_job(held, reason, retry=retry, lost=rule.profile == "stale")
        self._end_profile(held.profile, verdict)
        self._move_on()
        return held

    def hand_over(self, ending: Ending, request: ClaimRequest) -> Choice | None:
        """What would be granted if this run ended and handed its browser over. None: the browser has to be closed."""
        held, facts = self.holder(ending.ref), ending.facts
        completed = ending.reason is None and facts.evidence_saved and not ending.not_started
        known = facts.final_url is not None and not facts.proxy_changed
        if held is None or held.shared or held.section is not None or not (completed and known):
            return None
        after = deepcopy(self)
        after.settle(replace(ending, facts=replace(facts, browser=Browser.CLOSED)))
        choice = after.choices(request).get(held.profile)
        return None if choice is None or choice.job.shared else choice

    def others_first(self, choice: Choice, request: ClaimRequest) -> bool:
        """Whether its lane's job may be kept from an open browser: its head must be put aside, or others are urgent."""
        own = choice.job
        if self.job_blocks(self.lane(own.profile)[0]):
            return True
        heads = [queue[0] for profile in self.profiles if profile != own.profile and (queue := self.lane(profile))]
        urgent = [head for head in heads if head.spec.priority > own.spec.priority]
        mine = [head for head in urgent if head.pool == request.pool and head.spec.task in request.tasks]
        return any(head.account == own.account for head in urgent) or any(not self.lane_block(h.profile) for h in mine)

    def more_urgent(self, choice: Choice, request: ClaimRequest, *, apart_from: Container[str]) -> list[str]:
        """Jobs that this worker could run now, and that come before the choice."""
        return [
            other.job.job_id
            for profile, other in self.choices(request).items()
            if profile not in apart_from and other.job.spec.priority > choice.job.spec.priority
        ]

    def _give_back(self, held: Held, ending: Ending) -> Held:
        """The run never started: the job takes its old place, with the attempts it had.

        What the reason says of the profile is as true as if it had.
        """
        rule = FAILURES.get(ending.reason, self._registered(ending)) if ending.reason else DEFAULT_RULE
        verdict = rule.profile if rule.profile in ("review_required", "quarantined") else None
        side, open_lane = self.sides[held.profile], self.lane_block(held.profile) is None
        held.ended, held.status = self.now, "released"
        if held.job is not None:
            held.job.attempt -= 1
            held.job.given_back += 1
            held.job.run_at = None
            self._put(held.job, "queued" if held.job.given_back <= FREE_GIVE_BACKS else "scheduled")
        self._end_profile(held.profile, verdict)
        side.ready |= open_lane
        self._move_on()
        return held

    def _registered(self, ending: Ending) -> Rule:
        own = ending.registered
        if own is None or own.reason != ending.reason:
            return DEFAULT_RULE
        return Rule(retry=str(own.retry), profile=str(own.profile))

    def _verdict(self, held: Held, ending: Ending, rule: Rule) -> tuple[str | None, bool]:
        """What stands against `available`, and whether the ending is left to be resolved."""
        facts = ending.facts
        unknown_url = facts.browser != "none" and facts.final_url is None
        if held.section is not None or rule.profile == "quarantined" or facts.proxy_changed or unknown_url:
            return "quarantined", False
        if not facts.evidence_saved or rule.profile == "review_required":
            return "review_required", False
        return None, rule.profile == "stale" or facts.browser not in ("none", "closed")

    def _end_job(self, held: Held, reason: str | None, *, retry: str, lost: bool) -> None:
        job = held.job
        if job is None:
            return
        job.losses += lost
        job.given_back = 0
        own = job.spec.retry.reasons if job.spec.retry else None
        may = reason in own if own is not None else retry == "yes"
        if reason is None:
            self._put(job, "completed")
        elif (lost and job.losses >= MAX_LOSSES) or held.may_be_done or not may:
            self._put(job, "review")
        elif job.attempt >= job.spec.max_attempts:
            self._put(job, "review" if lost else "dead")
        else:
            self._put(job, "scheduled")
            job.run_at = None

    def retry_window(self, job: Work) -> tuple[datetime, datetime]:
        """When a job that was just settled may be tried again: jitter takes away up to half of the delay."""
        backoff = (job.spec.retry and job.spec.retry.backoff) or BACKOFF
        times = job.given_back - FREE_GIVE_BACKS if job.given_back else job.attempt
        whole = min(backoff.first * backoff.factor ** (times - 1), backoff.max)
        return self.now + whole / 2, self.now + whole

    def _end_profile(self, profile: str, verdict: str | None) -> None:
        """A profile with sharers waits for the last one; then the worst of what is known of its endings counts."""
        side = self.sides[profile]
        if side.state not in ("leased", "stale"):
            return
        side.verdict = max((side.verdict, verdict), key=[None, "review_required", "quarantined"].index)
        if self.live(profile):
            return
        if self.unresolved(profile):
            side.state, side.clean = "stale", False
            return
        side.clean = side.verdict is None
        side.state = _end_of(side)
        side.verdict, side.drain, side.asked = None, None, False

    def expire(self) -> list[Held]:
        """Leases whose time is up. Nothing is freed but the routing key and the place in the pool."""
        over = [held for held in self.leases if held.ended is None and held.expires <= self.now]
        if self.expiry_pauses:
            return []
        for held in over:
            self._end_unexplained(held, "revoked" if held.status == "revoked" else "expired", held.expires)
        self._move_on()
        return over

    def _end_unexplained(self, held: Held, status: str, at: datetime) -> None:
        held.ended, held.status, held.unresolved = at, status, True
        side = self.sides[held.profile]
        if side.state == "leased" and not self.live(held.profile):
            side.state, side.clean = "stale", False

    def resolve(self, held: Held, facts: LostFacts) -> bool:
        """Decide an unexplained ending by its release policy and what was found out. False: not now.

        The first report about a lost run is kept whenever it comes, and counts if there is nothing newer.
        """
        if facts.reported_by and held.status in ("expired", "revoked") and held.ended is not None:
            held.report = held.report or facts
        if not held.unresolved:
            return False
        if facts == LostFacts():
            facts = held.report or facts
        verdict = self._resolution(held, facts)
        if verdict == "later":
            return False
        held.unresolved = False
        if held.job is not None and held.job.state == "running" and held.job.lease is held:
            self._end_job(held, "WORKER_LOST", retry="yes", lost=True)
        self._end_profile(held.profile, verdict)
        self._move_on()
        return True

    def _resolution(self, held: Held, facts: LostFacts) -> str | None:
        if held.section is not None or facts.proxy_changed:
            return "quarantined"
        if held.policy not in ("recover", "restore"):
            return {"quarantine": "quarantined", "review": "review_required"}[held.policy]
        if held.ended is not None and (self.expiry_pauses or self.now < held.ended + held.lock_delay):
            return "later"
        if held.policy == "restore":
            return "review_required"  # no fleet of a history has a profile store: there is nothing to go back to
        same = held.proxy == self.profiles[held.profile].proxy_id
        return None if held.step and facts.final_url is not None and facts.browser_dead and same else "review_required"

    # People decide

    def decide(self, decision: Decision) -> str:
        """The new state. Raises what the port says it raises."""
        match decision.target:
            case Target.PROFILE:
                state = self._decide_profile(decision)
            case Target.JOB:
                state = self._decide_job(decision)
            case Target.ACCOUNT:
                state = self._decide_account(decision)
            case Target.LEASE:
                state = self._revoke(decision)
            case _:
                raise AssertionError("the model knows which messages are owed, and not what becomes of them")
        self._move_on()
        return state

    def _decide_profile(self, decision: Decision) -> str:
        side = self.sides.get(decision.id)
        if side is None:
            raise NotFound("no such profile")
        if decision.version == 0:
            raise VersionConflict("no record has version 0")
        action, leased = decision.action.value, side.state == "leased"
        if leased and side.drain is not None and PROFILE_DECISIONS.get(("available", action)) == side.drain:
            side.asked = False
            return side.state
        after = PROFILE_DECISIONS.get((side.drain or "available" if leased else side.state, action))
        if after is None:
            raise IllegalTransition("not from here")
        if decision.action is Action.ENABLE and not side.clean:
            after = "review_required"
        if leased:
            side.drain, side.asked = None if after == "available" else after, False
            return side.state
        if after == "available" and self.unresolved(decision.id):
            raise IllegalTransition("an ending of it is not explained yet")
        side.state, side.verdict, side.drain, side.asked = after, None, None, False
        side.clean |= after == "available"
        return after

    def _decide_job(self, decision: Decision) -> str:
        job = self.jobs.get(decision.id)
        if job is None:
            raise NotFound("no such job")
        if decision.version == 0:
            raise VersionConflict("no record has version 0")
        if decision.action.value not in JOB_DECISIONS.get(job.state, ()):
            raise IllegalTransition("not in this state")
        match decision.action:
            case Action.CANCEL:
                self._put(job, "cancelled")
            case Action.DROP:
                job.dropped = True
            case Action.APPROVE:
                job.approved = True
            case _:
                job.approved, job.dropped, job.run_at, job.given_back = True, False, None, 0
                job.reopened += 1
                self._place(job, follow_conflict=False)
        self._move_on()
        return job.state

    def _decide_account(self, decision: Decision) -> str:
        if decision.id not in self.accounts:
            raise NotFound("no such account")
        if decision.version is not None and decision.version != self.account_versions[decision.id]:
            raise VersionConflict("not the version that was looked at")
        self.account_versions[decision.id] += 1
        if decision.action is Action.PAUSE:
            self.paused.add(decision.id)
            return "paused"
        self.paused.discard(decision.id)
        return "active"

    def _revoke(self, decision: Decision) -> str:
        held = next((held for held in self.leases if held.ref[0] == decision.id and held.ended is None), None)
        if held is None or held.status == "revoked":
            raise (Conflict if held else NotFound)("no such live lease")
        held.status = "revoked"
        return held.status
