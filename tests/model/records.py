"""What the reference model keeps: one side per profile, one work per job, one held lease per grant, for ever."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.settle import LostFacts

LOCK_DELAY_SHARE = 0.25
LONGEST_LOCK_DELAY = timedelta(seconds=60)  # as a lease is renewed every minute at least


@dataclass(slots=True)
class Side:
    """The running side of one profile. `since`: when its lane last became able to run, or last gave a job. `asked`: a
    person looks inside, who was asked to decide and has not yet."""

    since: datetime
    state: str = "available"
    token: int = 0
    clean: bool = True
    drain: str | None = None
    asked: bool = False
    verdict: str | None = None
    ready: bool = False


@dataclass(slots=True)
class Work:
    """One job. `reopened` counts how often a person brought it back; `reported` the webhooks that are owed."""

    job_id: str
    seq: int
    spec: JobSpec
    account: str
    profile: str
    pool: str
    run_at: datetime | None
    state: str = ""
    attempt: int = 0
    losses: int = 0
    given_back: int = 0
    approved: bool = False
    dropped: bool = False
    reopened: int = 0
    version: int = 1
    lease: "Held | None" = None
    reported: Counter[str] = field(default_factory=Counter)

    @property
    def shared(self) -> bool:
        return self.spec.mode == "shared"

    @property
    def order(self) -> tuple[int, int]:
        return (-self.spec.priority, self.seq)


@dataclass(slots=True)
class Held:
    """One lease, for ever. `ended` None: it holds its profile, its routing key and its place in the pool.

    One that a person revoked does so too, until its time is up: its holder may not know it yet.
    """

    profile: str
    token: int
    account: str
    job: Work | None
    worker: str
    key: str
    pool: str
    shared: bool
    policy: str
    ttl: timedelta
    expires: datetime
    proxy: str | None
    status: str = "running"
    step: str | None = None
    url: str | None = None
    section: str | None = None
    idempotent: bool = False
    left: str | None = None
    ended: datetime | None = None
    unresolved: bool = False
    report: LostFacts | None = None

    @property
    def ref(self) -> tuple[str, str, int]:
        return (f"{self.profile}:{self.token}", self.profile, self.token)

    @property
    def may_be_done(self) -> bool:
        """Something was changed for good, or may have been, and no safe step followed."""
        return (self.section is not None and not self.idempotent) or self.left is not None

    @property
    def lock_delay(self) -> timedelta:
        return min(self.ttl * LOCK_DELAY_SHARE, LONGEST_LOCK_DELAY)


@dataclass(frozen=True, slots=True)
class Choice:
    """A job that may be granted now, and its place in the order."""

    job: Work
    key: str
    place: tuple[int, datetime]
