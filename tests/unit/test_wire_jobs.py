"""Jobs at the edge: every field and alias, lists of jobs, and what is said of those that cannot be read."""

import json
from datetime import UTC
from enum import Enum, StrEnum
from typing import Any

import pytest

from leasekeeper.core.ids import AccountId
from leasekeeper.core.jobs import Backoff, JobSpec, OnConflict, Retry
from leasekeeper.core.leases import Mode
from leasekeeper.errors import InputError
from leasekeeper.ports import MAX_IN_BATCH
from leasekeeper.wire import job_from_json, jobs_from_json, parse_job, parse_jobs
from leasekeeper.wire.jobs import JOB
from leasekeeper.wire.kinds import MAX_PROBLEMS
from leasekeeper.wire.records import camel_case
from tests.unit.job_manifests import FULL, LEAST, SECRET, SPEC, faults
from tests.unit.records import seconds


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
    assert found[where].startswith(f"differs from {first}, and both are ")


def test_an_alias_that_says_the_same_is_fine() -> None:
    job = {**LEAST, "taskType": "sync_orders", "mode": "exclusive", "requiresExclusiveProfileLock": True}
    assert parse_job(job) == parse_job(LEAST)


@pytest.mark.parametrize("alias", ["requires_exclusive_profile_lock", "humanReviewOnLockConflict"])
def test_an_alias_that_is_a_flag_takes_nothing_else(alias: str) -> None:
    assert faults({**LEAST, alias: "yes"}) == {alias: "must be true or false, not text"}


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
