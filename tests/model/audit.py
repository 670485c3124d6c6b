"""Model and store side by side, and the promises that must hold at every moment whatever the model says.

Reads the store through its port only. Events are read once each, in their order, and replayed on the way.
"""

from collections import Counter
from collections.abc import Sequence

from leasekeeper.core.accounts import Account
from leasekeeper.core.decisions import Review, Target
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.events import Event
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import Lane
from leasekeeper.errors import NotFound
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Grant, Store
from tests.model.records import Held, Work
from tests.model.reference import Model
from tests.model.tables import FINAL, PROFILE_MOVES, WAITS

REOPENING = ("retry", "requeue")


class Audit:
    """What was last seen of a store: `parked` are lanes that it says wait for an account's key."""

    def __init__(self, store: Store, model: Model) -> None:
        self.store, self.model = store, model
        self.parked: dict[str, str] = {}
        self.seen = 0
        self.lanes: dict[str, Lane] = {}
        self.job_states: dict[str, str] = {}
        self.profile_states: dict[str, str] = {}
        self.tokens: dict[str, int] = {}
        self.unexplained: set[tuple[str, str]] = set()
        self.finished: Counter[str] = Counter()
        self.reopened: Counter[str] = Counter()

    async def compare(self) -> None:
        """Everything that the store holds, against the model and against its own events."""
        await self._replay()
        lanes = {str(lane.profile_id): lane for lane in (await self.store.find(Lane, limit=MAX_IN_PAGE)).items}
        self.parked = {name: lane.waits_on for name, lane in lanes.items() if lane.waits_on is not None}
        self._compare_profiles(lanes)
        self._compare_revisions(lanes)
        shown = (await self.store.find(Job, limit=MAX_IN_PAGE)).items
        self._compare_jobs({str(job.job_id): job for job in shown})
        self._compare_leases((await self.store.find(Lease, {"live": "true"}, limit=MAX_IN_PAGE)).items)
        await self._compare_stats(shown)
        await self._compare_inbox()

    def _compare_profiles(self, lanes: dict[str, Lane]) -> None:
        seen = {
            name: (str(lane.state), lane.token, lane.clean, lane.drain, lane.verdict) for name, lane in lanes.items()
        }
        sides = self.model.sides.items()
        assert seen == {name: (side.state, side.token, side.clean, side.drain, side.verdict) for name, side in sides}
        assert self.profile_states == {name: side.state for name, side in sides}, "I12: replayed profile states"
        for name, lane in lanes.items():
            if lane.waits_on is not None:
                assert lane.waits_on.startswith("account:"), f"{name} waits for {lane.waits_on}"
            head = self.model.lane(name)
            assert (lane.head_job_id is not None) == bool(head), f"the lane of {name} has the head {lane.head_job_id}"
            assert lane.head_job_id in (None, *(job.job_id for job in head[:1]))

    def _compare_revisions(self, lanes: dict[str, Lane]) -> None:
        """Whoever knows a lane's revision knows the lane: it counts every change, and is never the same for two."""
        for name, lane in lanes.items():
            before = self.lanes.get(name)
            if before is not None and before != lane:
                assert before.revision < lane.revision, f"{name} was written without counting: {before} -> {lane}"
        self.lanes = lanes

    def _compare_jobs(self, shown: dict[str, Job]) -> None:
        assert shown.keys() == self.model.jobs.keys(), "I4: every acknowledged job is there, and no other"
        for name, work in self.model.jobs.items():
            job = shown[name]
            state, reasons = self.model.shown(work, parked=work.profile in self.parked)
            assert job.state == state, f"{name} is {job.state} ({job.blocked_reason}), wanted {state} {reasons}"
            assert job.blocked_reason in reasons or (job.blocked_reason is None and not reasons), (name, reasons, job)
            assert (job.attempt, job.losses, job.given_back, job.approved, job.dropped) == (
                work.attempt,
                work.losses,
                work.given_back,
                work.approved,
                work.dropped,
            )
            assert (job.finished_at is not None) == (work.state in FINAL)
            assert self.job_states[name] == work.state, "I12: replayed job state"
            assert work.attempt <= work.spec.max_attempts + work.reopened, "I9: attempts are bounded"
            assert self.finished[name] <= 1 + self.reopened[name], "I5: one final state, once"

    def _compare_leases(self, leases: Sequence[Lease]) -> None:
        seen = {
            (lease.lease_id, lease.worker_id, lease.job_id, lease.routing_key, lease.pool, str(lease.status),
             lease.expires_at, lease.last_safe_step, lease.open_section, lease.left_section)
            for lease in leases
        }  # fmt: skip
        live = [held for held in self.model.leases if held.ended is None]
        assert seen == {
            (held.ref[0], held.worker, held.job.job_id if held.job else None, held.key, held.pool, held.status,
             held.expires, held.step, held.section, held.left)
            for held in live
        }  # fmt: skip
        assert len(leases) == len(seen), "I3: no two leases are the same"

    async def _compare_stats(self, shown: Sequence[Job]) -> None:
        stats = await self.store.stats()
        assert stats.jobs == Counter("dropped" if job.dropped else str(job.state) for job in shown)
        assert stats.blocked == Counter(str(job.blocked_reason) for job in shown if job.state == "blocked")
        assert stats.leases == Counter(held.pool for held in self.model.leases if held.ended is None)
        assert stats.profiles == Counter(side.state for side in self.model.sides.values())

    async def _compare_inbox(self) -> None:
        """What waits for a person is in the inbox, once, and nothing else is; what is owed to a webhook is owed."""
        reviews = (await self.store.find(Review, {"open": "true"}, limit=MAX_IN_PAGE)).items
        seen = Counter((str(review.target), review.job_id or review.profile_id) for review in reviews)
        wanted = {("profile", name) for name, side in self.model.sides.items() if side.asked or side.state in WAITS}
        wanted |= {("job", job.job_id) for job in self.model.jobs.values() if self._waits_for_a_person(job)}
        assert seen == Counter(wanted)
        deliveries = (await self.store.find(Delivery, limit=MAX_IN_PAGE)).items
        owed = Counter((str(d.job_id), d.type) for d in deliveries)
        assert owed == Counter(
            {(job.job_id, kind): count for job in self.model.jobs.values() for kind, count in job.reported.items()}
        )

    def _waits_for_a_person(self, job: Work) -> bool:
        return job.state == "review" or (job.state == "blocked" and "blocked_by_approval" in self.model.job_blocks(job))

    async def limits(self, grants: Sequence[Grant]) -> None:
        """I1, from the store's own leases: at the moment of a grant no limit is passed."""
        live = (await self.store.find(Lease, {"live": "true"}, limit=MAX_IN_PAGE)).items
        for grant in grants:
            beside = [lease for lease in live if lease.profile_id == grant.lease.profile_id]
            assert len(beside) <= grant.profile.max_active_runs, (
                f"I1: {grant.lease.profile_id} has {len(beside)} leases"
            )
            if not grant.profile.disposable and not all(lease.shared for lease in beside):
                assert len(beside) == 1, f"I1: {grant.lease.profile_id} has an exclusive lease and another"
            key = grant.lease.routing_key
            if key.startswith("account:"):
                assert sum(lease.routing_key == key for lease in live) == 1, f"I1: {key} is held twice"
            limit = self.model.limits.get(grant.lease.pool)
            if limit is not None:
                in_pool = sum(lease.pool == grant.lease.pool for lease in live)
                assert in_pool <= limit.max_leases, f"I1: pool {grant.lease.pool} has {in_pool} leases"

    async def put_aside(self) -> int:
        """After a claim: queued jobs that the store found blocked by themselves. Only those that are may be."""
        before = dict(self.job_states)
        await self._replay()
        aside = [name for name, state in self.job_states.items() if (before.get(name), state) == ("queued", "blocked")]
        for name in aside:
            job = self.model.jobs[name]
            assert self.model.job_blocks(job), f"{name} was put aside, but nothing stops it"
            job.state = "blocked"
        return len(aside)

    async def learn_retry(self, job: Work) -> None:
        """A job that will be tried again: the store chose the moment, within the backoff's bounds."""
        if job.state == "scheduled" and job.run_at is None:
            job.run_at = (await self.store.get(Job, job.job_id)).run_at
            earliest, latest = self.model.retry_window(job)
            assert job.run_at is not None
            assert earliest <= job.run_at <= latest

    async def version(self, target: Target, record_id: str) -> int | None:
        try:
            match target:
                case Target.PROFILE:
                    return (await self.store.get(Lane, record_id)).version
                case Target.JOB:
                    return (await self.store.get(Job, record_id)).version
                case Target.ACCOUNT:
                    return (await self.store.get(Account, record_id)).version
                case Target.LEASE | Target.WEBHOOK | Target.TOKEN | Target.SCHEDULE | Target.ENDPOINT:
                    return None
                case Target.PROXY | Target.PAUSE:
                    return None
        except NotFound:
            return None

    async def _replay(self) -> None:
        """New events, oldest first (I12), with what each may and may not do (I3, I5, I7)."""
        page = await self.store.find(Event, {"since": str(self.seen)}, limit=MAX_IN_PAGE)
        assert page.after is None
        for event in reversed(page.items):
            self.seen = event.seq
            if event.type == "lease_granted" and event.profile_id is not None:
                token = event.data["token"]
                assert token == self.tokens.get(event.profile_id, 0) + 1, f"I3: {event.profile_id} granted {token}"
                self.tokens[event.profile_id] = int(str(token))
            if event.profile_id is not None and event.profile_state is not None:
                self._replay_profile(event, str(event.profile_id), str(event.profile_state))
            if event.job_id is not None and event.job_state is not None:
                self._replay_job(event, str(event.job_id), str(event.job_state))

    def _replay_profile(self, event: Event, profile: str, after: str) -> None:
        before = self.profile_states.get(profile)
        if before is None:
            assert (event.type, after) == ("profile_added", "available")
        elif before != after:
            assert (before, after) in PROFILE_MOVES, f"{profile} went from {before} to {after} by {event.type}"
        if event.type == "lease_expired":
            self.unexplained.add((profile, str(event.run_id)))
        elif event.type == "stale_resolved":
            self.unexplained.discard((profile, str(event.run_id)))
        elif event.type == "profile_decided" and before != after:
            self.unexplained = {ending for ending in self.unexplained if ending[0] != profile}
        silent = after == "available" and any(ending[0] == profile for ending in self.unexplained)
        assert not silent, f"I7: {profile} is available by {event.type} after an unexplained ending"
        self.profile_states[profile] = after

    def _replay_job(self, event: Event, job: str, after: str) -> None:
        before = self.job_states.get(job)
        if event.type == "job_decided" and event.data.get("action") in REOPENING:
            self.reopened[job] += 1
        if before in FINAL and after != before:
            decided = before == "dead" and event.type in ("job_decided", "job_unblocked")
            assert decided, f"I5: {job} was {before} and became {after} by {event.type}"
        if after in FINAL and after != before:
            self.finished[job] += 1
        self.job_states[job] = after


__all__ = ["Audit", "Held"]
