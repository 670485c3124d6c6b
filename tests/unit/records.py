"""One ordinary record of each kind, and functions that make others like it: tests say what is special."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from leasekeeper.core.accounts import Account, Proxy
from leasekeeper.core.ids import AccountId, JobId, LeaseId, ProfileId, ProxyId, RunId, Token, WorkerId
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.leases import Lease, Mode
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.ports import Grant

NOW = datetime(2026, 5, 1, 9, 30, tzinfo=UTC)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def before(number: float) -> datetime:
    """So many seconds before NOW."""
    return NOW - seconds(number)


_ACCOUNT = Account(account_id=AccountId("store_us_018"))
_PROXY = Proxy(proxy_id=ProxyId("dallas"), server="http://proxy.example:8080", region="US")
_PROFILE = Profile(
    profile_id=ProfileId("profile_018"),
    account_id=AccountId("store_us_018"),
    proxy_id=ProxyId("dallas"),
    language="en-US",
    timezone="America/Chicago",
)
_LANE = Lane(
    profile_id=ProfileId("profile_018"),
    account_id=AccountId("store_us_018"),
    state_at=before(90),
    waiting_at=before(90),
)
_JOB = Job(
    job_id=JobId("job_1"),
    account_id=AccountId("store_us_018"),
    profile_id=ProfileId("profile_018"),
    task="sync_orders",
    payload={"shop": "acme"},
    pool="default",
    attempt=1,
    created_at=before(600),
    state=JobState.RUNNING,
    run_id=RunId("run_1"),
)
_LEASE = Lease(
    lease_id=LeaseId("lease_1"),
    profile_id=ProfileId("profile_018"),
    account_id=AccountId("store_us_018"),
    job_id=JobId("job_1"),
    run_id=RunId("run_1"),
    worker_id=WorkerId("worker_07"),
    incarnation="f00d",
    proxy_id=ProxyId("dallas"),
    pool="default",
    routing_key="profile:profile_018",
    mode=Mode.EXCLUSIVE,
    token=Token(7),
    acquired_at=before(120),
    heartbeat_at=before(10),
    expires_at=NOW + seconds(50),
    ttl_ms=60_000,
    lock_delay_ms=15_000,
    renew_ms=15_000,
    last_safe_step="dashboard_open",
    last_safe_at=before(40),
)


def an_account(**changes: Any) -> Account:
    return replace(_ACCOUNT, **changes)


def a_proxy(**changes: Any) -> Proxy:
    return replace(_PROXY, **changes)


def a_profile(**changes: Any) -> Profile:
    return replace(_PROFILE, **changes)


def a_lane(**changes: Any) -> Lane:
    return replace(_LANE, **changes)


def a_job(**changes: Any) -> Job:
    """A job whose first run goes on."""
    return replace(_JOB, **changes)


def a_lease(**changes: Any) -> Lease:
    """The live lease of that run: safe at dashboard_open 40 s ago, no section open."""
    return replace(_LEASE, **changes)


def a_grant(**changes: Any) -> Grant:
    return replace(Grant(lease=_LEASE, profile=_PROFILE, account=_ACCOUNT, proxy=_PROXY, job=_JOB), **changes)
