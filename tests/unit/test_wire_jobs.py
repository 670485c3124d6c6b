"""Jobs at the edge: every field, alias, limit and fault, and the fingerprint."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.bridges.broker import Message
from leasekeeper.bridges.intake import Intake
from leasekeeper.core.depth import MAX_DEPTH
from leasekeeper.core.ids import AccountId, JobId, ProfileId, ProxyId
from leasekeeper.core.jobs import Backoff, JobSpec, OnConflict, Retry, Risk, RunMode, SessionMode
from leasekeeper.core.leases import Mode
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.errors import InputError
from leasekeeper.ports import MAX_IN_BATCH
from leasekeeper.wire import fingerprint, job_body, job_from_json, jobs_from_json, parse_job, parse_jobs
from leasekeeper.wire.jobs import JOB, MAX_PAYLOAD_BYTES, TRACEPARENT
from leasekeeper.wire.kinds import MAX_PROBLEMS
from leasekeeper.wire.records import camel_case
from tests.unit.records import NOW, seconds

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


def test_a_job_needs_a_task_and_an_owner_and_nothing_else() -> None:
    assert parse_job(LEAST) == JobSpec(task="sync_orders", account_id=AccountId("store_us_018"))
    assert parse_job({"task": "t", "profile_id": "p"}).profile_id == "p"


def test_a_manifest_without_a_task_says_what_its_task_id_was_read_as() -> None:
    for name in ("task_id", "taskId"):
        said = faults({name: "sync_orders", "account_id": "store_us_018"})["task"]
        assert said == f"{name} was read as job_id, the name of this job, and not as the task to run"


@pytest.mark.parametrize(
    ("text", "mode"),
    [("persistent", "persistent"), ("isolated", "isolated"), ("temporary", "isolated")],
)
def test_a_session_is_the_profile_or_a_throwaway_copy(text: str, mode: str) -> None:
    for name in ("sessionMode", "session_mode"):
        assert parse_job({**LEAST, name: text}).session_mode == mode
    assert "one of persistent, isolated, temporary" in faults({**LEAST, "session_mode": "new"})["session_mode"]


def test_every_field_of_a_job_is_read() -> None:
    assert parse_job(FULL) == SPEC
    assert set(FULL) == {field.name for field in JOB.table}


def test_what_is_read_has_the_types_of_the_core() -> None:
    spec = parse_job(FULL)
    assert all(isinstance(value, StrEnum) for value in (spec.mode, spec.run_mode, spec.risk_level, spec.on_conflict))
    assert type(spec.release_policy) is str
    assert spec.run_at is not None
    assert spec.run_at.tzinfo is UTC


def test_null_is_the_same_as_leaving_a_field_out() -> None:
    nulls = {field.name: None for field in JOB.table if field.name not in LEAST}
    assert parse_job({**nulls, **LEAST}) == parse_job(LEAST)


def test_attempts_are_counted_by_the_server() -> None:
    assert parse_job({**LEAST, "attempt": 7}).attempt == 0
    assert faults({**LEAST, "attempt": -1}) == {"attempt": "must be a whole number from 0 to 1000000"}


def test_the_payload_is_copied() -> None:
    payload: dict[str, Any] = {"list": [1], "pair": (1, 2)}
    spec = parse_job({**LEAST, "payload": payload})
    payload["list"].append(2)
    assert spec.payload == {"list": [1], "pair": [1, 2]}


@pytest.mark.parametrize("field", [field.name for field in JOB.table])
def test_the_camel_case_form_of_every_field_is_an_alias(field: str) -> None:
    renamed = {camel_case(field) if name == field else name: value for name, value in FULL.items()}
    assert parse_job(renamed) == SPEC


def test_camel_case_reaches_into_the_retry_rule() -> None:
    spec = parse_job({**LEAST, "retry": {"backoff": {"firstSeconds": 1, "maxSeconds": 2}}})
    assert spec.retry == Retry(backoff=Backoff(first=seconds(1), max=seconds(2)))


ALIASES: list[tuple[str, object, str, object]] = [
    ("task_id", "task_101", "job_id", "task_101"),
    ("taskId", "task_101", "job_id", "task_101"),
    ("jobId", "task_101", "job_id", "task_101"),
    ("task_type", "daily", "task", "daily"),
    ("taskType", "daily", "task", "daily"),
    ("requires_exclusive_profile_lock", True, "mode", Mode.EXCLUSIVE),
    ("requires_exclusive_profile_lock", False, "mode", Mode.SHARED),
    ("requiresExclusiveProfileLock", False, "mode", Mode.SHARED),
    ("human_review_on_lock_conflict", True, "on_conflict", OnConflict.REVIEW),
    ("human_review_on_lock_conflict", False, "on_conflict", OnConflict.WAIT),
    ("humanReviewOnLockConflict", True, "on_conflict", OnConflict.REVIEW),
]


@pytest.mark.parametrize(("alias", "said", "field", "meant"), ALIASES)
def test_the_names_of_the_articles_are_accepted(alias: str, said: object, field: str, meant: object) -> None:
    job = {"account_id": "a", alias: said} if field == "task" else {**LEAST, alias: said}
    assert getattr(parse_job(job), field) == meant


def test_a_whole_manifest_of_the_articles_is_accepted() -> None:
    spec = parse_job(
        {
            "task_id": "task_101",
            "taskType": "daily_status_check",
            "account_id": "store_us_018",
            "profileId": "profile-store-us-018",
            "proxy_id": "proxy_us_dallas_01",
            "requires_exclusive_profile_lock": True,
            "allowed_actions": ["inspect_login", "read_dashboard"],
            "expectedProxyRegion": "US",
            "lock_timeout_seconds": 900,
            "human_review_on_lock_conflict": True,
            "attempt": 1,
        }
    )
    assert (spec.job_id, spec.task, spec.profile_id) == (
        "task_101",
        "daily_status_check",
        "profile-store-us-018",
    )
    assert (spec.mode, spec.on_conflict, spec.attempt) == (Mode.EXCLUSIVE, OnConflict.REVIEW, 0)


@pytest.mark.parametrize(
    ("job", "where", "first"),
    [
        ({**LEAST, "taskType": "other"}, "taskType", "task"),
        ({"taskType": "other", **LEAST}, "task", "taskType"),
        (
            {**LEAST, "mode": "shared", "requires_exclusive_profile_lock": True},
            "requires_exclusive_profile_lock",
            "mode",
        ),
        (
            {**LEAST, "humanReviewOnLockConflict": True, "on_conflict": "skip"},
            "on_conflict",
            "humanReviewOnLockConflict",
        ),
        ({**LEAST, "job_id": "a", "task_id": "b"}, "task_id", "job_id"),
    ],
)
def test_an_alias_that_contradicts_its_field_is_refused(job: dict[str, Any], where: str, first: str) -> None:
    found = faults(job)
    assert list(found) == [where]
    assert found[where].startswith(f"differs from {first}, and both mean ")


def test_an_alias_that_says_the_same_is_fine() -> None:
    job = {**LEAST, "taskType": "sync_orders", "mode": "exclusive", "requiresExclusiveProfileLock": True}
    assert parse_job(job) == parse_job(LEAST)


@pytest.mark.parametrize("alias", ["requires_exclusive_profile_lock", "humanReviewOnLockConflict"])
def test_an_alias_that_is_a_flag_takes_nothing_else(alias: str) -> None:
    assert faults({**LEAST, alias: "yes"}) == {alias: "must be true or false, not text"}


ID_RULE = "must be 1 to 128 letters, digits, '.', '_' or '-', not starting with '.'"
TASK_RULE = f"must be the name of a task: {ID_RULE[8:]}"
TEXT_RULE = "must be text of 1 to 128 printable characters"
TIME_RULE = "must be a time with its zone, as 2026-05-01T09:30:00Z or 2026-05-01T11:30:00+02:00"
URL_RULE = (
    "must be an http:// or https:// address of at most 2048 plain characters, with a host and without user or password"
)
PAYLOAD_RULE = "must be a JSON object of at most 256 KiB and 32 levels"
REASON_RULE = "must be a reason as TIMEOUT: 1 to 64 capital letters, digits and '_'"

WRONG: list[tuple[str, object, str, str]] = [
    ("job_id", "", "job_id", ID_RULE),
    ("job_id", 7, "job_id", f"{ID_RULE}, not a number"),
    ("account_id", ".hidden", "account_id", ID_RULE),
    ("profile_id", "a/b", "profile_id", ID_RULE),
    ("profile_id", "x" * 129, "profile_id", ID_RULE),
    ("profile_id", "line\n", "profile_id", ID_RULE),
    ("proxy_id", ["p"], "proxy_id", f"{ID_RULE}, not a list"),
    ("pool", "my pool", "pool", ID_RULE),
    ("task", "a b", "task", TASK_RULE),
    ("task", True, "task", f"{TASK_RULE}, not a boolean"),
    ("payload", [1], "payload", f"{PAYLOAD_RULE}, not a list"),
    ("payload", "{}", "payload", f"{PAYLOAD_RULE}, not text"),
    ("max_attempts", 0, "max_attempts", "must be a whole number from 1 to 100"),
    ("max_attempts", 101, "max_attempts", "must be a whole number from 1 to 100"),
    ("max_attempts", 2.5, "max_attempts", "must be a whole number from 1 to 100"),
    ("max_attempts", "3", "max_attempts", "must be a whole number from 1 to 100, not text"),
    ("max_attempts", True, "max_attempts", "must be a whole number from 1 to 100, not a boolean"),
    ("max_attempts", float("nan"), "max_attempts", "must be a whole number from 1 to 100"),
    ("max_attempts", float("inf"), "max_attempts", "must be a whole number from 1 to 100"),
    ("max_attempts", 10**400, "max_attempts", "must be a whole number from 1 to 100"),
    ("priority", 1001, "priority", "must be a whole number from -1000 to 1000"),
    ("priority", -1001, "priority", "must be a whole number from -1000 to 1000"),
    ("lock_timeout_seconds", 4, "lock_timeout_seconds", "must be a whole number from 5 to 86400"),
    ("lock_timeout_seconds", 86_401, "lock_timeout_seconds", "must be a whole number from 5 to 86400"),
    ("conflict_delay_seconds", 0, "conflict_delay_seconds", "must be a whole number from 1 to 604800"),
    ("conflict_delay_seconds", 604_801, "conflict_delay_seconds", "must be a whole number from 1 to 604800"),
    ("idempotency_key", "", "idempotency_key", "must be text of 1 to 256 printable characters"),
    ("idempotency_key", "k" * 257, "idempotency_key", "must be text of 1 to 256 printable characters"),
    ("idempotency_key", "a\tb", "idempotency_key", "must be text of 1 to 256 printable characters"),
    ("run_at", "2026-05-01T09:30:00", "run_at", TIME_RULE),
    ("run_at", "2026-05-01", "run_at", TIME_RULE),
    ("run_at", "tomorrow", "run_at", TIME_RULE),
    ("run_at", "2026-13-01T09:30:00Z", "run_at", TIME_RULE),
    ("run_at", "0001-01-01T00:00:00+02:00", "run_at", TIME_RULE),
    ("run_at", datetime(2026, 5, 1), "run_at", TIME_RULE),  # noqa: DTZ001 - naive on purpose
    ("run_at", 1777627800, "run_at", f"{TIME_RULE}, not a number"),
    ("created_at", "", "created_at", TIME_RULE),
    ("mode", "exclusiv", "mode", "must be one of exclusive, shared"),
    ("mode", True, "mode", "must be one of exclusive, shared, not a boolean"),
    ("traceparent", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "traceparent", f"must be {TRACEPARENT.rule}"),
    (
        "traceparent",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "traceparent",
        f"must be {TRACEPARENT.rule}",
    ),
    ("session_mode", "new", "session_mode", "must be one of persistent, isolated, temporary"),
    ("run_mode", "headed", "run_mode", "must be one of headless, visible"),
    ("risk_level", "high", "risk_level", "must be one of low, medium, review_required"),
    ("release_policy", "free", "release_policy", "must be one of recover, restore, review, quarantine"),
    ("on_conflict", "panic", "on_conflict", "must be one of wait, reschedule, skip, review"),
    (
        "allowed_actions",
        "click",
        "allowed_actions",
        f"must be a list of at most 64, each {ID_RULE[8:]}, not text",
    ),
    ("allowed_actions", ["a"] * 65, "allowed_actions", f"must be a list of at most 64, each {ID_RULE[8:]}"),
    ("allowed_actions", ["ok", "not ok"], "allowed_actions[1]", ID_RULE),
    ("expected_proxy_region", "", "expected_proxy_region", TEXT_RULE),
    ("expected_language", "x" * 129, "expected_language", TEXT_RULE),
    ("expected_timezone", 1, "expected_timezone", f"{TEXT_RULE}, not a number"),
    ("retry", [], "retry", "must be an object, not a list"),
    ("retry", {"resons": []}, "retry.resons", "no such field; did you mean reasons?"),
    ("retry", {"reasons": ["timeout"]}, "retry.reasons[0]", REASON_RULE),
    (
        "retry",
        {"reasons": ["A"] * 65},
        "retry.reasons",
        f"must be a list of at most 64, each {REASON_RULE[8:]}",
    ),
    ("retry", {"backoff": 3}, "retry.backoff", "must be an object, not a number"),
    ("retry", {"backoff": {"factor": 0.5}}, "retry.backoff.factor", "must be a number from 1 to 100"),
    (
        "retry",
        {"backoff": {"factor": float("nan")}},
        "retry.backoff.factor",
        "must be a number from 1 to 100",
    ),
    (
        "retry",
        {"backoff": {"first_seconds": -1}},
        "retry.backoff.first_seconds",
        "must be a number of seconds from 0 to 604800",
    ),
    (
        "retry",
        {"backoff": {"max_seconds": "5"}},
        "retry.backoff.max_seconds",
        "must be a number of seconds from 0 to 604800, not text",
    ),
    (
        "retry",
        {"backoff": {"first_seconds": 1000}},
        "retry.backoff.max_seconds",
        "must not be less than first_seconds",
    ),
    ("callback_url", "ops.example/hooks", "callback_url", URL_RULE),
    ("callback_url", "ftp://ops.example/", "callback_url", URL_RULE),
    ("callback_url", "https:///hooks", "callback_url", URL_RULE),
    ("callback_url", "https://ops.example:99999/", "callback_url", URL_RULE),
    ("callback_url", "https://[::1/", "callback_url", URL_RULE),
    ("callback_url", "https://ops..example/", "callback_url", URL_RULE),
    ("callback_url", f"https://{'x' * 64}.example/", "callback_url", URL_RULE),
    ("callback_url", "https://ops.example/a b", "callback_url", URL_RULE),
    ("callback_url", "https://öps.example/", "callback_url", URL_RULE),
    ("callback_url", "https://ops.example/" + "x" * 2048, "callback_url", URL_RULE),
    (
        "labels",
        [],
        "labels",
        "must be at most 32 names with values, each text of at most 256 characters, not a list",
    ),
    ("labels", {"tier": 1}, "labels.tier", "must be text of at most 256 printable characters, not a number"),
    ("labels", {"": "x"}, "labels.''", "the key must be text of 1 to 256 printable characters"),
    ("labels", {1: "x"}, "labels.1", "the key must be text of 1 to 256 printable characters"),
    ("labels", {"a": "x" * 257}, "labels.a", "must be text of at most 256 printable characters"),
    ("notes", "ä" * 2049, "notes", "must be text of at most 4096 bytes"),
    ("notes", "a\0b", "notes", "must be text of at most 4096 bytes"),
    ("notes", "half \ud800", "notes", "must be text of at most 4096 bytes"),
]


@pytest.mark.parametrize(("field", "value", "where", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_value_is_refused_with_its_place_and_what_is_allowed(
    field: str, value: object, where: str, message: str
) -> None:
    assert faults({**LEAST, field: value}) == {where: message}


def test_every_field_has_a_wrong_value_in_the_table() -> None:
    elsewhere = {"schema_version", "attempt"}
    assert {row[0] for row in WRONG} | elsewhere == {field.name for field in JOB.table}


def test_more_labels_than_allowed_are_refused() -> None:
    assert list(faults({**LEAST, "labels": {str(n): "" for n in range(33)}})) == ["labels"]


RIGHT: list[tuple[str, object]] = [
    ("job_id", "a" * 128),
    ("max_attempts", 1),
    ("max_attempts", 100),
    ("priority", -1000),
    ("priority", 1000),
    ("priority", 5.0),
    ("lock_timeout_seconds", 5),
    ("lock_timeout_seconds", 86_400),
    ("conflict_delay_seconds", 1),
    ("conflict_delay_seconds", 604_800),
    ("idempotency_key", "k" * 256),
    ("run_at", "2026-05-01t09:30z"),
    ("run_at", "2026-05-01 09:30:00.123456789+00:00"),
    ("run_at", NOW),
    ("allowed_actions", []),
    ("allowed_actions", ["a"] * 64),
    ("callback_url", "http://localhost:8080/"),
    ("callback_url", "https://[::1]:8443/x?y=z"),
    ("labels", {str(n): "x" * 256 for n in range(32)}),
    ("notes", "ä" * 2048),
    ("retry", {}),
    ("retry", {"reasons": []}),
    ("risk_level", Risk.REVIEW_REQUIRED),
]


@pytest.mark.parametrize(("field", "value"), RIGHT)
def test_values_on_the_edge_of_what_is_allowed_are_accepted(field: str, value: object) -> None:
    assert isinstance(parse_job({**LEAST, field: value}), JobSpec)


def test_an_empty_callback_url_is_none() -> None:
    assert parse_job({**LEAST, "callback_url": ""}) == parse_job(LEAST)
    assert parse_job({**LEAST, "callbackUrl": ""}) == parse_job(LEAST)


def test_whether_a_bridge_sends_results_makes_no_other_job_of_a_message() -> None:
    message = Message(id="m1", body=json.dumps(LEAST).encode())
    one, other = (Intake(bridge="jobs", replies=replies).read(message) for replies in (False, True))
    assert one.callback_url != other.callback_url
    assert fingerprint(one) == fingerprint(other)


def test_credentials_in_a_callback_url_are_refused_and_not_repeated() -> None:
    found = faults({**LEAST, "callback_url": "https://user:hunter2@ops.example/"})
    assert "user or password" in found["callback_url"]
    assert "hunter2" not in found["callback_url"]


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"in": value}
    return value


def test_a_payload_may_be_as_large_and_deep_as_the_limits_say() -> None:
    room = MAX_PAYLOAD_BYTES - len('{"a":""}')
    for payload in ({"a": "x" * room}, nested(MAX_DEPTH)):
        assert parse_job({**LEAST, "payload": payload}).payload == payload


SECRET = "hunter2"  # noqa: S105 - the text to look for in messages
BAD_PAYLOADS: list[tuple[dict[Any, Any], str]] = [
    ({SECRET: "x" * MAX_PAYLOAD_BYTES}, "it takes 262158 bytes"),
    ({SECRET: "ü" * (MAX_PAYLOAD_BYTES // 2)}, "it takes 262158 bytes"),
    ({SECRET: nested(MAX_DEPTH)}, "it is nested too deep"),
    ({SECRET: [0] * MAX_PAYLOAD_BYTES}, "it holds too many values"),
    ({SECRET: float("nan")}, "it holds a number that is not finite"),
    ({SECRET: [float("-inf")]}, "it holds a number that is not finite"),
    ({SECRET: 10**5000}, "it holds a number with too many digits"),
    ({SECRET: object()}, "it holds a Python object, which JSON has not"),
    ({SECRET: NOW}, "it holds a date, which JSON has not"),
    ({SECRET: b"bytes"}, "it holds a Python bytes, which JSON has not"),
    ({7: SECRET}, "it holds a key that is not text"),
    ({"a": f"{SECRET}\0"}, "it holds text with a NUL or half a surrogate pair, which stores cannot keep"),
    ({f"{SECRET}\udfff": 1}, "it holds text with a NUL or half a surrogate pair, which stores cannot keep"),
]


@pytest.mark.parametrize(("payload", "reason"), BAD_PAYLOADS, ids=[row[1] for row in BAD_PAYLOADS])
def test_a_bad_payload_is_refused_without_repeating_any_of_it(payload: dict[Any, Any], reason: str) -> None:
    assert faults({**LEAST, "payload": payload}) == {"payload": f"{PAYLOAD_RULE}: {reason}"}


def test_a_payload_that_holds_itself_is_refused() -> None:
    payload: dict[str, Any] = {}
    payload["self"] = [payload, payload]
    assert list(faults({**LEAST, "payload": payload})) == ["payload"]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("prioritty", "priority"),
        ("acount_id", "account_id"),
        ("maxAttempt", "max_attempts"),
        ("tasktype", "task"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_known_one(name: str, near: str) -> None:
    assert faults({**LEAST, name: 1}) == {name: f"no such field; did you mean {near}?"}


def test_an_unknown_field_that_resembles_nothing_is_refused_with_all_there_are() -> None:
    message = faults({**LEAST, "zzz": 1})["zzz"]
    assert message.startswith("no such field; there are: schema_version, job_id, account_id")


def test_strange_field_names_are_shown_short_and_printable() -> None:
    assert list(faults({**LEAST, "\x1b[31m" + "x" * 1000: 1})) == ["'\\x1b[31m" + "x" * 59 + "'"]
    strange: dict[Any, Any] = {**LEAST, 7: 1, None: 2, 10**5000: 3}
    assert list(faults(strange)) == ["7", "(nothing)", "(a number)"]


@pytest.mark.parametrize("data", [None, "job", 7, [[]]])
def test_a_job_is_an_object(data: object) -> None:
    assert "must be an object" in str(faults(data))


def test_all_problems_are_reported_at_once() -> None:
    found = faults({"priority": 5000, "mode": "x", "nots": "", "labels": {"a": 1, "b": 2}})
    assert list(found) == ["priority", "mode", "nots", "labels.a", "labels.b", "task", "account_id"]


def test_a_missing_task_or_owner_is_reported() -> None:
    assert faults({}) == {
        "task": "is required: the registered task to run",
        "account_id": "account_id or profile_id is required: whose job is it?",
    }
    assert faults({"task": None, "profile_id": "p"}) == {"task": "is required: the registered task to run"}


def test_a_wrong_owner_is_not_called_missing() -> None:
    assert list(faults({"task": "t", "account_id": "../x"})) == ["account_id"]


@pytest.mark.parametrize("version", [0, 2, "1", True, 1.5, []])
@pytest.mark.parametrize("name", ["schema_version", "schemaVersion"])
def test_an_unknown_version_is_refused_before_anything_else_is_checked(name: str, version: object) -> None:
    found = faults({name: version, "a_field_of_the_future": 1})
    assert found == {name: "must be 1, the one this program knows; for a newer one upgrade it"}


def test_the_error_is_one_text_that_names_every_place() -> None:
    with pytest.raises(InputError, match=r"(?s)not acceptable.*where\.task: is required.*where\.account_id") as caught:
        parse_job({}, "where")
    assert caught.value.code == "INVALID_INPUT"


def test_one_object_is_a_list_of_one_job() -> None:
    assert parse_jobs(LEAST) == parse_jobs([LEAST]) == [parse_job(LEAST)]
    assert parse_jobs([]) == []


def test_problems_in_a_list_say_which_job() -> None:
    jobs = [
        LEAST,
        {**LEAST, "priority": "high"},
        LEAST,
        {"task": "t", "retry": {"backoff": {"factor": 0}}},
        7,
    ]
    assert list(faults(jobs, parse_jobs)) == [
        "jobs[1].priority",
        "jobs[3].retry.backoff.factor",
        "jobs[3].account_id",
        "jobs[4]",
    ]


def test_a_list_holds_at_most_one_batch() -> None:
    assert len(parse_jobs([LEAST] * MAX_IN_BATCH)) == MAX_IN_BATCH
    assert "at most 1000 at once, not 1001" in faults([LEAST] * (MAX_IN_BATCH + 1), parse_jobs)["jobs"]


def test_two_jobs_of_one_list_cannot_have_one_id() -> None:
    jobs = [{**LEAST, "job_id": "a"}, LEAST, {**LEAST, "taskId": "a"}]
    assert faults(jobs, parse_jobs) == {"jobs[2].job_id": "is the same as jobs[0].job_id"}
    one, other = ({**LEAST, "job_id": "a", "idempotency_key": key} for key in ("k", "l"))
    assert len(parse_jobs([one, one])) == 2  # it came twice: the store gives the first one back
    assert faults([one, other], parse_jobs) == {"jobs[1].job_id": "is the same as jobs[0].job_id"}


def test_members_of_enums_are_taken_for_their_values() -> None:
    class Shop(str, Enum):  # noqa: UP042 - as programs have them that are older than StrEnum
        MAIN = "main"

    spec = parse_job({**LEAST, "profile_id": Shop.MAIN, "payload": {Shop.MAIN: Shop.MAIN}, "notes": Shop.MAIN})
    assert (spec.profile_id, spec.payload, spec.notes) == ("main", {"main": "main"}, "main")
    assert {type(spec.profile_id), type(spec.notes), *map(type, spec.payload)} == {str}


def test_a_flood_of_problems_is_cut_off_and_counted() -> None:
    found = faults([{}] * 60, parse_jobs)
    assert len(found) == MAX_PROBLEMS + 1
    assert found[""] == "and 20 more"


def test_jobs_are_read_from_json_text() -> None:
    assert job_from_json(json.dumps(FULL)) == SPEC
    assert job_from_json(b"\xef\xbb\xbf" + json.dumps(FULL).encode()) == SPEC
    assert jobs_from_json(json.dumps([FULL, LEAST])) == [SPEC, parse_job(LEAST)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: Expecting value, line 1, column 1"),
        ('{"task": }', "not JSON: Expecting value, line 1, column 10"),
        ('{\n"task": "a",\n}', "not JSON: .*, line "),
        ('{"payload": {"a": NaN}}', "not JSON: NaN is no JSON number"),
        ('{"priority": 1, "priority": 2}', "an object holds priority twice"),
        ('{"payload": {"hunter2": 1, "hunter2": 2}}', "an object holds a key twice"),
        ("[" * 100_000, "nested too deep"),
        ('{"priority": ' + "1" * 5000 + "}", "a number with too many digits"),
        (b'{"task": "\xff"}', "not JSON: byte 10 is not UTF-8"),
    ],
)
def test_bad_json_is_refused_with_its_place(text: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        job_from_json(text)
    assert SECRET not in str(caught.value)


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
