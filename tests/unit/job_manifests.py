"""What tests of jobs at the edge share: the smallest job, one with every field, and what is wrong with others."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from leasekeeper.core.ids import AccountId, JobId, ProfileId, ProxyId
from leasekeeper.core.jobs import Backoff, JobSpec, OnConflict, Retry, Risk, RunMode, SessionMode
from leasekeeper.core.leases import Mode
from leasekeeper.errors import InputError
from leasekeeper.wire import parse_job
from tests.unit.records import NOW, seconds

SECRET = "hunter2"  # noqa: S105 - the text to look for in messages
LEAST = {"task": "sync_orders", "account_id": "store_us_018"}

# One job that sets every field, and the spec it means.
FULL: dict[str, Any] = {
    "schema_version": 1,
    "job_id": "task_101",
    "account_id": "store_us_018",
    "profile_id": "profile_018",
    "task": "sync_orders",
    "payload": {"shop_id": "acme_vn", "pages": [1, 2.5, None, True, {"deep": "ü"}]},
    "attempt": 1,
    "max_attempts": 5,
    "idempotency_key": "orders 2026-05-01",
    "priority": -7,
    "run_at": "2026-05-01T11:30:00+02:00",
    "pool": "multilogin",
    "mode": "shared",
    "allowed_actions": ["inspect_login", "read_dashboard"],
    "expected_proxy_region": "US",
    "expected_language": "en-US",
    "expected_timezone": "America/Chicago",
    "proxy_id": "proxy_us_dallas_01",
    "run_mode": "visible",
    "session_mode": "isolated",
    "risk_level": "medium",
    "lock_timeout_seconds": 900,
    "release_policy": "review",
    "on_conflict": "reschedule",
    "conflict_delay_seconds": 60,
    "retry": {"reasons": ["TIMEOUT"], "backoff": {"first_seconds": 2.5, "factor": 3, "max_seconds": 60}},
    "callback_url": "https://ops.example/hooks/mlx?key=1",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "created_at": "2026-05-01T09:29:59.123456Z",
    "labels": {"tier": "gold"},
    "notes": "line one\nline two",
}
SPEC = JobSpec(
    job_id=JobId("task_101"),
    account_id=AccountId("store_us_018"),
    profile_id=ProfileId("profile_018"),
    task="sync_orders",
    payload={"shop_id": "acme_vn", "pages": [1, 2.5, None, True, {"deep": "ü"}]},
    max_attempts=5,
    idempotency_key="orders 2026-05-01",
    priority=-7,
    run_at=NOW,
    pool="multilogin",
    mode=Mode.SHARED,
    allowed_actions=("inspect_login", "read_dashboard"),
    expected_proxy_region="US",
    expected_language="en-US",
    expected_timezone="America/Chicago",
    proxy_id=ProxyId("proxy_us_dallas_01"),
    run_mode=RunMode.VISIBLE,
    session_mode=SessionMode.ISOLATED,
    risk_level=Risk.MEDIUM,
    lock_timeout_seconds=900,
    release_policy="review",
    on_conflict=OnConflict.RESCHEDULE,
    conflict_delay_seconds=60,
    retry=Retry(reasons=("TIMEOUT",), backoff=Backoff(first=seconds(2.5), factor=3, max=seconds(60))),
    callback_url="https://ops.example/hooks/mlx?key=1",
    traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    created_at=datetime(2026, 5, 1, 9, 29, 59, 123456, tzinfo=UTC),
    labels={"tier": "gold"},
    notes="line one\nline two",
)


def faults(data: object, parse: Callable[[Any], object] = parse_job) -> dict[str, str]:
    """Where each problem is, and what is said about it."""
    with pytest.raises(InputError) as caught:
        parse(data)
    return {problem.where: problem.message for problem in caught.value.problems}
