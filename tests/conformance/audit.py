"""What must hold at the end of any history, read through the port alone: called when a world closes.

Each rule is one generator of findings; all findings are reported at once.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from leasekeeper.core.accounts import Proxy, ProxyTrouble
from leasekeeper.core.decisions import Review, Target
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.events import Event, EventType, replay_job, replay_profile
from leasekeeper.core.jobs import FINAL, JOB_TRANSITIONS, Job, JobState
from leasekeeper.core.leases import Lease
from leasekeeper.core.profiles import STATE_DATA, TRANSITIONS, Lane, Profile, ProfileState, because
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.routing import is_account_key
from tests.conformance.world import World

FIRST_STATES = {JobState.SCHEDULED, JobState.QUEUED, JobState.BLOCKED, JobState.SKIPPED, JobState.REVIEW}
WORTH_TELLING = FINAL | {JobState.REVIEW}
ENDS = {EventType.RUN_SETTLED, EventType.LEASE_EXPIRED, EventType.LEASE_REVOKED}


@dataclass(slots=True)
class History:
    """Everything a store knows, at one quiet moment."""

    jobs: Sequence[Job]
    lanes: Sequence[Lane]
    profiles: dict[str, Profile]
    leases: Sequence[Lease]
    events: Sequence[Event]
    reviews: Sequence[Review]
    deliveries: Sequence[Delivery]
    proxies: Sequence[Proxy]

    by_job: dict[str, list[Event]]
    by_profile: dict[str, list[Event]]

    def of_job(self, job: Job) -> list[Event]:
        return self.by_job.get(job.job_id, [])

    def of_profile(self, lane: Lane) -> list[Event]:
        """The profile's events since it was last added."""
        mine = self.by_profile.get(lane.profile_id, [])
        added = [n for n, event in enumerate(mine) if event.type is EventType.PROFILE_ADDED]
        return mine[added[-1] :] if added else mine


async def audit(world: World) -> None:
    """Fail with every finding that the history gives."""
    events = sorted(await world.kept(Event), key=lambda event: event.seq)
    history = History(
        jobs=await world.kept(Job),
        lanes=await world.kept(Lane),
        profiles={record.profile_id: record for record in await world.kept(Profile)},
        leases=await world.kept(Lease),
        events=events,
        reviews=await world.kept(Review),
        deliveries=await world.kept(Delivery),
        proxies=await world.kept(Proxy),
        by_job=grouped(events, "job_id"),
        by_profile=grouped(events, "profile_id"),
    )
    findings = [finding for rule in RULES for finding in rule(history)]
    assert not findings, "\n".join(findings)


def grouped(events: Sequence[Event], name: str) -> dict[str, list[Event]]:
    groups: dict[str, list[Event]] = {}
    for event in events:
        groups.setdefault(getattr(event, name) or "", []).append(event)
    return groups


def jobs_replay(history: History) -> Iterator[str]:
    for job in history.jobs:
        state = replay_job(history.of_job(job))
        shown_by_lane = state is JobState.QUEUED and job.state is JobState.BLOCKED
        if state is not job.state and not shown_by_lane:
            yield f"job {job.job_id} is {job.state}, its events say {state}"


def profiles_replay(history: History) -> Iterator[str]:
    for lane in history.lanes:
        state = replay_profile(history.of_profile(lane))
        if state is not lane.state:
            yield f"profile {lane.profile_id} is {lane.state}, its events say {state}"


def profiles_say_why(history: History) -> Iterator[str]:
    """The cause of the state and its data are those of the event that led there, and as documented."""
    for lane in history.lanes:
        said = [event.data for event in history.of_profile(lane) if "state_cause" in event.data]
        if said and (why := (said[-1]["state_cause"], said[-1].get("state_data", {}))) != because(lane)[1:]:
            yield f"profile {lane.profile_id} is {lane.state} for {because(lane)}, its events say {why}"
        for cause, data in [because(lane)[1:], (lane.verdict_cause, lane.verdict_data)]:
            if cause is not None and not set(data) <= set(STATE_DATA[cause]):
                yield f"profile {lane.profile_id}: {cause} has {data}, not {STATE_DATA[cause]}"
        if lane.state_cause is None:
            yield f"profile {lane.profile_id} is {lane.state} without a cause"


def job_moves_are_legal(history: History) -> Iterator[str]:
    for job in history.jobs:
        states = [event.job_state for event in history.of_job(job) if event.job_state is not None]
        if states and history.of_job(job)[0].type is EventType.JOB_SUBMITTED and states[0] not in FIRST_STATES:
            yield f"job {job.job_id} was born {states[0]}"
        for before, after in pairwise(states):
            if before is not after and after not in JOB_TRANSITIONS[before]:
                yield f"job {job.job_id} went from {before} to {after}"


def profile_moves_are_legal(history: History) -> Iterator[str]:
    for lane in history.lanes:
        states = [event.profile_state for event in history.of_profile(lane) if event.profile_state is not None]
        for before, after in pairwise(states):
            if before is not after and (before, after) not in TRANSITIONS:
                yield f"profile {lane.profile_id} went from {before} to {after}"


def states_fit_leases(history: History) -> Iterator[str]:
    live = Counter(lease.profile_id for lease in history.leases if lease.ended_at is None)
    unresolved = Counter(lease.profile_id for lease in history.leases if lease.unresolved)
    for lane in history.lanes:
        if (lane.state is ProfileState.LEASED) is not bool(live[lane.profile_id]):
            yield f"profile {lane.profile_id} is {lane.state} with {live[lane.profile_id]} live leases"
        if lane.state is ProfileState.STALE and not unresolved[lane.profile_id]:
            yield f"profile {lane.profile_id} is stale and nothing is left to resolve"
        if lane.state is ProfileState.AVAILABLE and (lane.verdict or lane.drain or not lane.clean):
            yield f"profile {lane.profile_id} is available, {lane.verdict=}, {lane.drain=}, {lane.clean=}"


def running_jobs_have_a_run(history: History) -> Iterator[str]:
    open_runs = {lease.run_id: lease for lease in history.leases if lease.ended_at is None or lease.unresolved}
    for job in history.jobs:
        if job.state is JobState.RUNNING and (job.run_id is None or job.run_id not in open_runs):
            yield f"job {job.job_id} is running in no open run"
        if job.state in FINAL and job.finished_at is None:
            yield f"job {job.job_id} is {job.state} and never finished"
    running = {job.run_id for job in history.jobs if job.state is JobState.RUNNING}
    for lease in open_runs.values():
        if lease.ended_at is None and lease.job_id is not None and lease.run_id not in running:
            yield f"lease {lease.lease_id} is live, its job is not running"


def tokens_grow(history: History) -> Iterator[str]:
    last: dict[str, int] = {}
    for event in history.events:
        if event.type is EventType.LEASE_GRANTED and event.profile_id is not None:
            token = int(str(event.data["token"]))
            if token <= last.get(event.profile_id, 0):
                yield f"profile {event.profile_id}: token {token} after {last[event.profile_id]}"
            last[event.profile_id] = token
    for lane in history.lanes:
        if lane.token < last.get(lane.profile_id, 0):
            yield f"profile {lane.profile_id} forgot token {last[lane.profile_id]}"


def keys_and_profiles_are_not_shared(history: History) -> Iterator[str]:
    """At every point of the log: one lease per account key, and an exclusive run alone in its profile."""
    live: dict[str, Event] = {}
    for event in history.events:
        if event.run_id is None:
            continue
        if event.type in ENDS:
            live.pop(event.run_id, None)
        if event.type is not EventType.LEASE_GRANTED:
            continue
        disposable = event.profile_id in history.profiles and history.profiles[event.profile_id].disposable
        for other in live.values():
            if other.data["routing_key"] == event.data["routing_key"] and is_account_key(
                str(event.data["routing_key"])
            ):
                yield f"{event.data['routing_key']} is held by {other.run_id} and {event.run_id}"
            modes = {other.data["mode"], event.data["mode"]}
            if other.profile_id == event.profile_id and "exclusive" in modes and not disposable:
                yield f"profile {event.profile_id} is used by {other.run_id} and {event.run_id}: {modes}"
        live[event.run_id] = event


def reviews_are_open_where_needed(history: History) -> Iterator[str]:
    opened: Counter[tuple[Target, str]] = Counter(
        (r.target, r.proxy_id or r.job_id or r.profile_id) for r in history.reviews if r.decided_at is None
    )
    wanted: set[tuple[Target, str]] = {
        (Target.PROFILE, lane.profile_id)
        for lane in history.lanes
        if lane.state in (ProfileState.REVIEW_REQUIRED, ProfileState.QUARANTINED)
    } | {
        (Target.JOB, job.job_id)
        for job in history.jobs
        if job.state is JobState.REVIEW or job.blocked_reason == Blocked.APPROVAL
    }
    troubled = {proxy.proxy_id for proxy in history.proxies if proxy.trouble is not None}
    used = {profile.proxy_id for profile in history.profiles.values()}
    wanted |= {
        (Target.PROXY, proxy.proxy_id)
        for proxy in history.proxies
        if proxy.trouble is ProxyTrouble.MISMATCH and proxy.proxy_id in used
    }
    present = {lane.profile_id for lane in history.lanes}
    # While a person looks inside, what they were asked stays asked.
    looked_at = {(Target.PROFILE, lane.profile_id) for lane in history.lanes if lane.drain is not None}
    for (target, subject), count in opened.items():
        if count != 1:
            yield f"{count} open reviews of {target} {subject}"
        if target is Target.PROXY and subject in troubled:
            continue
        if (target, subject) not in wanted | looked_at and (target is not Target.PROFILE or subject in present):
            yield f"an open review of {target} {subject} that needs none"
    for target, subject in wanted - set(opened):
        yield f"no open review of {target} {subject}"


def deliveries_are_owed_once(history: History) -> Iterator[str]:
    """One message for each time that a job with a callback reached a state worth telling (I10)."""
    owed: Counter[tuple[str, str]] = Counter()
    for job in history.jobs:
        if job.callback_url is None:
            continue
        states = [None, *(event.job_state for event in history.of_job(job) if event.job_state is not None)]
        for before, after in pairwise(states):
            if after in WORTH_TELLING and before is not after:
                owed[job.job_id, f"job.{after}"] += 1
    written: Counter[tuple[str, str]] = Counter()
    present = {job.job_id for job in history.jobs}
    written.update((d.job_id, d.type) for d in history.deliveries if d.job_id in present and d.endpoint_id is None)
    for key in sorted(set(owed) | set(written)):
        if owed[key] != written[key]:
            yield f"{key}: {owed[key]} messages owed, {written[key]} written"


RULES = (
    jobs_replay,
    profiles_replay,
    profiles_say_why,
    job_moves_are_legal,
    profile_moves_are_legal,
    states_fit_leases,
    running_jobs_have_a_run,
    tokens_grow,
    keys_and_profiles_are_not_shared,
    reviews_are_open_where_needed,
    deliveries_are_owed_once,
)
