"""Jobs on their way over the wire: the body that a client sends, its fingerprint, and any value in any field."""

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.core.jobs import Backoff, JobSpec, OnConflict, Retry, Risk, SessionMode
from leasekeeper.core.leases import Mode
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.errors import InputError
from leasekeeper.wire import fingerprint, job_body, job_from_json, parse_job, parse_jobs
from leasekeeper.wire.records import camel_case
from tests.unit.job_manifests import FULL, LEAST, SPEC


def test_a_body_is_what_a_client_would_send() -> None:
    assert job_body(parse_job(LEAST)) == LEAST
    body = job_body(SPEC)
    assert body["retry"] == {
        "reasons": ["TIMEOUT"],
        "backoff": {"first_seconds": 2.5, "factor": 3, "max_seconds": 60.0},
    }
    assert parse_job(json.loads(json.dumps(body))) == SPEC


def test_the_fingerprint_of_a_body_never_changes() -> None:
    """It is stored with the key: another value here breaks the retried submits of running systems."""
    assert fingerprint(parse_job(LEAST)) == sha256(b'{"account_id":"store_us_018","task":"sync_orders"}').hexdigest()
    without = replace(SPEC, session_mode=SessionMode.PERSISTENT)
    assert fingerprint(without) == "73b88f351329196bbe298301eb0d62b2eb9595b17821e6e0fbd356158a516e94"


SAME = [
    {"job_id": "other"},
    {"created_at": "2020-01-01T00:00:00Z"},
    {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-11f067aa0ba902b7-00"},
    {"idempotency_key": "other"},
    {"attempt": 9},
    {"run_at": "2026-05-01T09:30:00Z"},
    {"mode": "shared"},
    {"schema_version": None},
]
OTHER = [
    {"payload": {}},
    {"task": "other"},
    {"account_id": "other"},
    {"profile_id": None},
    {"priority": 0},
    {"run_at": None},
    {"labels": {}},
    {"notes": ""},
    {"callback_url": "https://ops.example/hooks/mlx?key=2"},
    {"retry": {"reasons": ["TIMEOUT"]}},
]


@pytest.mark.parametrize("changes", SAME)
def test_a_resubmitted_job_has_the_same_fingerprint(changes: dict[str, Any]) -> None:
    assert fingerprint(parse_job({**FULL, **changes})) == fingerprint(SPEC)


@pytest.mark.parametrize("changes", OTHER)
def test_another_job_has_another_fingerprint(changes: dict[str, Any]) -> None:
    assert fingerprint(parse_job({**FULL, **changes})) != fingerprint(SPEC)


def test_a_default_that_is_spelled_out_does_not_change_the_fingerprint() -> None:
    spelled = {
        **LEAST,
        "priority": 0,
        "mode": "exclusive",
        "labels": {},
        "max_attempts": 3,
        "run_mode": "headless",
    }
    assert fingerprint(parse_job(spelled)) == fingerprint(parse_job(LEAST))


@given(st.permutations(sorted(FULL)), st.sets(st.sampled_from(sorted(FULL))))
def test_neither_order_nor_spelling_changes_the_fingerprint(order: list[str], renamed: set[str]) -> None:
    job = {camel_case(name) if name in renamed else name: FULL[name] for name in order}
    assert fingerprint(parse_job(job)) == fingerprint(SPEC)


NAMES = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=10,
)
SPECS = st.builds(
    JobSpec,
    task=NAMES,
    account_id=NAMES,
    profile_id=st.none() | NAMES,
    payload=st.dictionaries(st.text("abc", max_size=3), JSON_VALUES, max_size=4),
    max_attempts=st.integers(1, 100),
    idempotency_key=st.none() | NAMES,
    priority=st.integers(-1000, 1000),
    run_at=st.none() | st.datetimes(min_value=datetime(2000, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - st adds it
    mode=st.sampled_from(Mode),
    allowed_actions=st.none() | st.lists(NAMES, max_size=3).map(tuple),
    risk_level=st.sampled_from(Risk),
    release_policy=st.none() | st.sampled_from([policy.value for policy in ReleasePolicy]),
    on_conflict=st.sampled_from(OnConflict),
    retry=st.none()
    | st.builds(
        Retry,
        reasons=st.none() | st.just(("TIMEOUT",)),
        backoff=st.builds(
            Backoff,
            first=st.integers(0, 10_000).map(lambda ms: timedelta(milliseconds=ms)),
            factor=st.floats(1, 100),
            max=st.integers(10, 1_000).map(lambda s: timedelta(seconds=s)),
        ),
    ),
    labels=st.dictionaries(NAMES, NAMES, max_size=3),
    notes=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50),
)


@given(SPECS)
def test_a_job_survives_the_way_over_the_wire(spec: JobSpec) -> None:
    sent = json.dumps(job_body(spec))
    assert job_from_json(sent) == spec
    assert fingerprint(job_from_json(sent)) == fingerprint(spec)


@given(JSON_VALUES)
def test_any_json_gives_jobs_or_an_input_error(data: object) -> None:
    with suppress(InputError):
        assert isinstance(parse_jobs(data), list)


@given(st.dictionaries(st.sampled_from(sorted(FULL)), JSON_VALUES))
def test_any_value_in_any_field_gives_a_job_or_an_input_error(fields: dict[str, object]) -> None:
    with suppress(InputError):
        assert isinstance(parse_job({**LEAST, **fields}), JobSpec)
