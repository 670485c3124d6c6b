"""The history checker: what clients saw, held against the promises. It knows nothing of how a store works.

Input is the clients' own logs (each call when it was sent, each answer when it came, on one clock for all of them)
and a plain listing of what the store holds at the end. Output is a list of sentences, one for each broken promise.
A call without an answer, or whose error leaves it open, may have happened or not: it is never held against a store.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# Errors that say: nothing was done. Any other error leaves it open.
REFUSALS: Final = frozenset({"LeaseLost", "Conflict", "IdempotencyConflict", "ProfileBusy", "InputError", "NotFound"})
FINAL_STATES: Final = frozenset({"completed", "dead", "skipped", "cancelled"})
WRITES: Final = frozenset({"renew", "checkpoint", "enter_section", "leave_section", "settle"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one client. `answered` None: it died, or was cut off, before it knew."""

    who: str
    op: str
    args: Mapping[str, Any]
    called: float
    answered: float | None = None
    answer: Any = None
    error: str | None = None

    @property
    def accepted(self) -> bool:
        return self.answered is not None and self.error is None

    @property
    def refused(self) -> bool:
        return self.error in REFUSALS

    @property
    def open(self) -> bool:
        return not self.accepted and not self.refused


@dataclass(frozen=True, slots=True)
class Span:
    """One lease as its holder saw it: from the answer that granted it to the holder's own end of it."""

    who: str
    profile: str
    token: int
    job: str | None
    shared: bool
    holds: tuple[str, ...]
    called: float
    start: float
    end: float

    @property
    def name(self) -> str:
        return f"{self.profile}:{self.token} of {self.who}"


@dataclass(frozen=True, slots=True)
class Contents:
    """What the store holds when everything is over, as plain values."""

    jobs: tuple[Mapping[str, Any], ...] = ()
    leases: tuple[Mapping[str, Any], ...] = ()
    endings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """What was promised in this run: the holder's own deadline, and how many may hold each thing at once."""

    stops_after: float
    limits: Mapping[str, int] = field(default_factory=dict)


def read_log(lines: Iterable[str]) -> list[Call]:
    """Calls out of a log. A torn last line (its writer was killed) is a call without an answer, or nothing."""
    sent: dict[tuple[str, int], dict[str, Any]] = {}
    calls: dict[tuple[str, int], Call] = {}
    for line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        key = (record["who"], record["n"])
        if "op" in record:
            sent[key] = record
            calls[key] = Call(record["who"], record["op"], record["args"], record["at"])
        else:
            call = sent[key]
            calls[key] = Call(
                call["who"],
                call["op"],
                call["args"],
                call["at"],
                record["at"],
                record.get("answer"),
                record.get("error"),
            )
    return list(calls.values())


def check(calls: Iterable[Call], final: Contents, rules: Rules) -> list[str]:
    """Every broken promise, as a sentence."""
    history = sorted(calls, key=lambda call: call.called)
    spans = spans_of(history, rules)
    return [
        *overlaps(spans, rules),
        *tokens(spans),
        *late_writes(history, spans),
        *lost_jobs(history, final),
        *endings(history, spans, final),
        *attempts(spans, final),
        *keys(history, final),
        *lost_answers(history, final),
        *sweeps(history),
    ]


def spans_of(history: Iterable[Call], rules: Rules) -> list[Span]:
    """Leases with the time that their holders believed in them.

    A holder stops when it reports an ending, whatever the answer, and at its own deadline: so long after it *sent*
    the last renewal that was acknowledged. What comes after the deadline gives nothing back.
    """
    granted: list[tuple[tuple[str, int], Call, Mapping[str, Any]]] = []
    deadline: dict[tuple[str, int], float] = {}
    ended: dict[tuple[str, int], float] = {}
    for call in history:
        if call.op in ("claim", "acquire") and call.accepted:
            for grant in call.answer:
                lease = (grant["profile"], grant["token"])
                granted.append((lease, call, grant))
                deadline[lease] = call.called + rules.stops_after
        elif call.op == "renew" and call.accepted and call.called <= deadline.get(_lease(call), 0.0):
            deadline[_lease(call)] = call.called + rules.stops_after
        elif call.op == "settle":
            ended.setdefault(_lease(call), call.called)
    spans = []
    for lease, call, grant in granted:
        start = call.answered or call.called
        spans.append(
            Span(
                who=call.who,
                profile=lease[0],
                token=lease[1],
                job=grant["job"],
                shared=grant["shared"],
                holds=(f"profile {lease[0]}", f"key {grant['key']}", f"pool {grant['pool']}", f"job {grant['job']}"),
                called=call.called,
                start=start,
                end=max(start, min(deadline[lease], ended.get(lease, deadline[lease]))),
            )
        )
    return sorted(spans, key=lambda span: span.start)


def _lease(call: Call) -> tuple[str, int]:
    return (call.args["profile"], call.args["token"])


def overlaps(spans: Iterable[Span], rules: Rules) -> Iterator[str]:
    """I1: never more holders at once than allowed; an exclusive one of a profile, and of a job, is alone."""
    by_thing: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        for thing in span.holds:
            if thing in rules.limits or thing.startswith("job "):
                by_thing[thing].append(span)
    for thing, holders in by_thing.items():
        if thing == "job None":
            continue
        yield from _too_many(thing, holders, rules.limits.get(thing, 1))


def _too_many(thing: str, holders: list[Span], limit: int) -> Iterator[str]:
    active: list[Span] = []
    for span in sorted(holders, key=lambda span: span.start):
        active = [other for other in active if other.end > span.start]
        if span.end <= span.start:
            continue
        if len(active) >= limit:
            yield f"I1: {thing} may have {limit} holders, but {span.name} began beside {_names(active)}"
        elif thing.startswith("profile ") and active and not (span.shared and all(other.shared for other in active)):
            yield f"I1: {thing} has an exclusive holder, but {span.name} began beside {_names(active)}"
        active.append(span)


def _names(spans: Iterable[Span]) -> str:
    return ", ".join(span.name for span in spans)


def tokens(spans: Iterable[Span]) -> Iterator[str]:
    """I3: no two grants of a profile share a token, and of two grants in a row the later has the higher one."""
    by_profile: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_profile[span.profile].append(span)
    for profile, granted in by_profile.items():
        for token, count in Counter(span.token for span in granted).items():
            if count > 1:
                yield f"I3: {profile} granted token {token} {count} times"
        highest = 0
        moments = [(span.called, False, span.token) for span in granted]
        moments += [(span.start, True, span.token) for span in granted]
        for _, answered, token in sorted(moments):
            if answered:
                highest = max(highest, token)
            elif token < highest:
                yield f"I3: {profile} granted token {token} after {highest}"


def late_writes(history: Iterable[Call], spans: Iterable[Span]) -> Iterator[str]:
    """I3: nothing is accepted from a lease once its profile went to somebody else; nor twice from one that ended."""
    by_profile: dict[str, list[Span]] = defaultdict(list)
    shared: dict[tuple[str, int], bool] = {}
    for span in spans:
        by_profile[span.profile].append(span)
        shared[span.profile, span.token] = span.shared
    settled: dict[tuple[str, int], float] = {}
    for call in history:
        if call.op not in WRITES or not call.accepted:
            continue
        lease = _lease(call)
        for other in by_profile[lease[0]]:
            together = other.shared and shared.get(lease, False)
            if other.token > lease[1] and other.start < call.called and not together:
                yield f"I3: {call.op} of {lease[0]}:{lease[1]} was accepted after {other.name} was granted"
        if lease in settled and settled[lease] < call.called:
            yield f"I3: {call.op} of {lease[0]}:{lease[1]} was accepted after it was settled"
        if call.op == "settle":
            settled.setdefault(lease, call.answered or call.called)


def lost_jobs(history: Iterable[Call], final: Contents) -> Iterator[str]:
    """I4: an acknowledged job is in the store, once. What was sent once is there at most once."""
    found = Counter(job["job"] for job in final.jobs)
    marks = Counter(job["mark"] for job in final.jobs if job.get("mark"))
    for job, count in found.items():
        if count > 1:
            yield f"I4: job {job} is in {count} places"
    for mark, count in marks.items():
        if count > 1:
            yield f"I4: what was submitted once as {mark} is there {count} times"
    for call in history:
        for job in call.answer if call.op == "submit" and call.accepted else ():
            if not found[job["job"]]:
                yield f"I4: job {job['job']} was acknowledged to {call.who} and is gone"


def endings(history: Iterable[Call], spans: Iterable[Span], final: Contents) -> Iterator[str]:
    """I5: one final state per job, once, written by the run that had the job."""
    state_of = {job["job"]: job["state"] for job in final.jobs}
    for job, count in Counter(job for job, state in final.endings if state in FINAL_STATES).items():
        if count > 1:
            yield f"I5: job {job} reached a final state {count} times"
    runs: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.job is not None:
            runs[span.job].append(span)
    finished: dict[str, Call] = {}
    for call in history:
        if call.op != "settle" or not call.accepted or call.answer["job_state"] not in FINAL_STATES:
            continue
        job, state = call.args["job"], call.answer["job_state"]
        if job in finished:
            yield f"I5: job {job} was finished by {finished[job].who} and again by {call.who}"
        finished.setdefault(job, call)
        if state_of.get(job) != state:
            yield f"I5: job {job} was finished as {state} and is {state_of.get(job)}"
        for span in runs[job]:
            if call.answered is not None and span.called > call.answered:
                yield f"I5: job {job} was finished as {state}, and then {span.name} got it"


def attempts(spans: Iterable[Span], final: Contents) -> Iterator[str]:
    """I9: a job runs at most as often as it may."""
    runs = Counter(span.job for span in spans)
    for job in final.jobs:
        seen, limit = max(runs[job["job"]], job["attempt"]), job["max_attempts"]
        if seen > limit:
            yield f"I9: job {job['job']} ran {seen} times, allowed are {limit}"


def keys(history: Iterable[Call], final: Contents) -> Iterator[str]:
    """I8: all who submitted one key got one and the same job, and at most one of them was the first."""
    jobs: dict[str, set[str]] = defaultdict(set)
    firsts: Counter[str] = Counter()
    for call in history:
        for job in call.answer if call.op == "submit" and call.accepted else ():
            if job["key"] is not None:
                jobs[job["key"]].add(job["job"])
                firsts[job["key"]] += not job["already"]
    for job in final.jobs:
        if job["key"] is not None:
            jobs[job["key"]].add(job["job"])
    for key, names in jobs.items():
        if len(names) > 1:
            yield f"I8: key {key} led to {len(names)} jobs: {', '.join(sorted(names))}"
        if firsts[key] > 1:
            yield f"I8: key {key} was new to {firsts[key]} submitters"


def lost_answers(history: Iterable[Call], final: Contents) -> Iterator[str]:
    """A lost answer is found out, not done again: no lease that nobody heard of, no refusal of what was done."""
    heard: set[tuple[str, int]] = set()
    in_doubt: set[str] = set()
    settles: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for call in history:
        if call.op in ("claim", "acquire"):
            if call.accepted:
                heard |= {(grant["profile"], grant["token"]) for grant in call.answer}
            elif call.open:
                in_doubt.add(call.who)
        elif call.op == "settle":
            settles[_lease(call)].append(call)
    for lease in final.leases:
        name = (lease["profile"], lease["token"])
        if name not in heard and lease["who"] not in in_doubt:
            yield f"I4: {lease['who']} heard all answers, but never of its lease {name[0]}:{name[1]}"
        if lease["status"] == "released" and settles[name] and all(call.refused for call in settles[name]):
            yield f"I4: settle of {name[0]}:{name[1]} was refused to {lease['who']}, but it was done"


def sweeps(history: Iterable[Call]) -> Iterator[str]:
    """However many sweep: each lease expires once and is resolved once."""
    for op in ("expire", "resolve"):
        seen: Counter[str] = Counter()
        for call in history:
            if call.op == op and call.accepted:
                seen.update(call.answer)
        for lease, count in seen.items():
            if count > 1:
                yield f"I5: {lease} was answered {count} times as the answer to {op}"
