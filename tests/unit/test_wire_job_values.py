"""Jobs at the edge: each field with values that are refused, and those on the edge of what is allowed."""

import json
from datetime import datetime
from typing import Any

import pytest

from leasekeeper.bridges.broker import Message
from leasekeeper.bridges.intake import Intake
from leasekeeper.core.depth import MAX_DEPTH
from leasekeeper.core.jobs import JobSpec, Risk
from leasekeeper.wire import fingerprint, parse_job
from leasekeeper.wire.jobs import JOB, MAX_PAYLOAD_BYTES, TRACEPARENT
from tests.unit.job_manifests import LEAST, SECRET, faults
from tests.unit.records import NOW

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


BAD_PAYLOADS: list[tuple[dict[Any, Any], str]] = [
    ({SECRET: "x" * MAX_PAYLOAD_BYTES}, "it takes 262158 bytes"),
    ({SECRET: "ü" * (MAX_PAYLOAD_BYTES // 2)}, "it takes 262158 bytes"),
    ({SECRET: nested(MAX_DEPTH)}, "it is nested too deep"),
    ({SECRET: [0] * MAX_PAYLOAD_BYTES}, "it holds too many values"),
    ({SECRET: float("nan")}, "it holds a number that is not finite"),
    ({SECRET: [float("-inf")]}, "it holds a number that is not finite"),
    ({SECRET: 10**5000}, "it holds a number with too many digits"),
    ({SECRET: object()}, "it holds a Python object, which JSON does not have"),
    ({SECRET: NOW}, "it holds a date, which JSON does not have"),
    ({SECRET: b"bytes"}, "it holds a Python bytes, which JSON does not have"),
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
