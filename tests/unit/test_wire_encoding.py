"""Records as JSON: every type of the core and the ports has a form, and secrets have none."""

import json
from dataclasses import fields
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from leasekeeper.core.accounts import Limit
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.fleet import Change, ChangeKind
from leasekeeper.core.ids import JobId
from leasekeeper.core.jobs import Backoff, JobSpec, Retry
from leasekeeper.core.policy import Policy, Retention
from leasekeeper.core.settle import Ending
from leasekeeper.ports import Grant, LeaseRequest, Page, Stats, Submitted
from leasekeeper.wire import encode, encode_in_full, encode_time
from leasekeeper.wire.encoding import without_query
from tests.unit.records import NOW, a_job, a_lane, a_lease, a_profile, a_proxy, an_account, seconds

SECRET_URL = "https://ops.example/hook?key=hunter2"  # noqa: S105 - the text that must not come out


def encoded(value: object, **options: Any) -> Any:
    """What a program reads: through real JSON text, so that nothing but plain types passes."""
    return json.loads(json.dumps(encode(value, **options), allow_nan=False))


def test_a_lease_says_fencing_token() -> None:
    lease = encoded(a_lease())
    assert lease["fencing_token"] == 7
    assert "token" not in lease
    assert set(lease) == {f.name for f in fields(a_lease())} - {"token"} | {"fencing_token"}


@pytest.mark.parametrize("record", [a_lease().ref, a_lane(), a_lease()])
def test_no_record_says_just_token(record: object) -> None:
    assert "token" not in encoded(record)
    assert "fencing_token" in encoded(record)


def test_times_are_utc_with_microseconds_and_a_z() -> None:
    assert encoded(a_lease())["expires_at"] == "2026-05-01T09:30:50.000000Z"
    east = datetime(2026, 5, 1, 11, 30, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    assert encode_time(east) == "2026-05-01T09:30:00.000005Z"


def test_a_time_without_a_zone_is_a_bug_and_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="without a zone"):
        encode_time(datetime(2026, 5, 1))  # noqa: DTZ001 - naive on purpose


def test_enums_are_their_values_and_none_is_null() -> None:
    lease = encoded(a_lease())
    assert (lease["mode"], lease["status"], lease["open_section"]) == ("exclusive", "running", None)
    assert type(encode(a_lease().mode)) is str


def test_durations_are_seconds_and_say_so_in_their_name() -> None:
    assert encoded(Retry(backoff=Backoff(first=seconds(2.5))))["backoff"] == {
        "first_seconds": 2.5,
        "factor": 2.0,
        "max_seconds": 900.0,
    }
    assert encoded(Policy())["long_run_seconds"] == 600.0
    assert encoded(Retention(jobs=None)) == {"jobs_seconds": None, "events_seconds": 90 * 86_400.0}


def test_a_duration_keeps_its_name_when_it_is_not_set() -> None:
    request = LeaseRequest(profile_id=a_profile().profile_id, worker_id=a_lease().worker_id, incarnation="i")
    assert encoded(request)["ttl_seconds"] is None


def test_the_payload_of_a_job_comes_only_if_asked_for() -> None:
    job = a_job(payload={"password": "hunter2"})
    grant = Grant(lease=a_lease(), profile=a_profile(), account=an_account(), proxy=a_proxy(), job=job)
    for record in (job, Submitted(job=job), grant, [job], {"job": job}, Page(items=[job])):
        assert "hunter2" not in json.dumps(encode(record))
        assert "hunter2" in json.dumps(encode(record, payload=True))
    assert "payload" not in encoded(job)
    assert "payload" not in encoded(JobSpec(task="t", payload={"password": "hunter2"}))


def test_the_query_of_a_webhook_is_never_shown() -> None:
    job = encoded(a_job(callback_url=SECRET_URL), payload=True)
    assert job["callback_url"] == "https://ops.example/hook?[redacted]"
    assert encoded(JobSpec(task="t", callback_url=SECRET_URL))["callback_url"] == job["callback_url"]
    delivery = Delivery(
        delivery_id="d",
        job_id=JobId("j"),
        type="job.completed",
        url=SECRET_URL,
        host="ops.example",
        body={},
        created_at=NOW,
        due_at=NOW,
    )
    assert encoded(delivery)["url"] == job["callback_url"]


def test_a_webhook_without_a_query_is_shown_as_it_is() -> None:
    assert without_query("https://ops.example/hook") == "https://ops.example/hook"
    assert encoded(a_job(callback_url=None))["callback_url"] is None


def test_in_full_means_in_full() -> None:
    job: Any = encode_in_full(a_job(callback_url=SECRET_URL))
    assert (job["callback_url"], job["payload"]) == (SECRET_URL, {"shop": "acme"})


def test_tuples_mappings_and_sets_become_plain() -> None:
    change = Change(kind=ChangeKind.CHANGE, what="limit", id="x", fields={"max_leases": (1, 2)})
    assert encoded(change) == {"kind": "change", "what": "limit", "id": "x", "fields": {"max_leases": [1, 2]}}
    assert encoded(a_job(allowed_actions=("a", "b")))["allowed_actions"] == ["a", "b"]
    assert encoded(frozenset({ChangeKind.ADD, ChangeKind.CHANGE})) == ["add", "change"]
    assert encoded({ChangeKind.ADD: {1: None}}) == {"add": {"1": None}}


@pytest.mark.parametrize(
    "record",
    [
        an_account(),
        a_proxy(),
        a_profile(),
        a_lane(),
        a_job(),
        a_lease(),
        Limit(pool="p", max_leases=1),
        Event(at=NOW, type=EventType.JOB_DUE, data={"at": NOW}),
        Ending(ref=a_lease().ref),
        Stats(now=NOW),
    ],
    ids=lambda record: type(record).__name__,
)
def test_every_record_has_a_form_that_is_json(record: Any) -> None:
    assert len(encoded(record, payload=True)) == len(fields(record))


def test_what_has_no_form_is_refused() -> None:
    for value in (object(), b"bytes", JobSpec):
        with pytest.raises(TypeError, match="has no form on the wire"):
            encode(value)
