"""What a store reads for `why`. Not in the module of the answer, so that a program can read it without loading that."""

from dataclasses import dataclass
from datetime import datetime

from leasekeeper.core.accounts import Account, Limit, Proxy
from leasekeeper.core.decisions import Review
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.notes import Note
from leasekeeper.core.pauses import Pause
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.workers import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyFacts:
    """Everything that bears on one job or profile, read at one moment."""

    now: datetime
    job: Job | None
    profile: Profile
    account: Account
    proxy: Proxy | None
    lane: Lane
    holders: tuple[Lease, ...]
    key_holders: tuple[Lease, ...]
    unresolved: tuple[Lease, ...]
    ahead: int
    waiting: int
    limit: Limit | None
    pool_leases: int
    last_run: RunRecord | None
    reviews: tuple[Review, ...]
    task_known: bool = True  # a worker of the job's pool has offered its task at least once
    outdated: bool = False  # every worker that takes its jobs has too old a browser
    pauses: tuple[Pause, ...] = ()  # those that keep jobs of its pool from being started, the longest first
    unwell: tuple[Worker, ...] = ()  # live workers of its pool whose machine cannot run jobs
    job_run: RunRecord | None = None  # the job's own last run; `last_run` is the profile's
    webhooks: tuple[Delivery, ...] = ()  # the newest that are owed to the job's callback_url
    webhooks_tried_at: datetime | None = None  # when any that is pending was tried last
    notes: tuple[Note, ...] = ()  # on the profile and on its account, the newest first
    next_job: Job | None = None  # of the profile, as people see it: the head of its queue, else one that is blocked
