"""Schedules in a fleet file: what is taken, what is refused and how that is said, and the template as JSON."""

from typing import Any

import pytest

from leasekeeper.core.fleet import Fleet, diff
from leasekeeper.core.jobs import JobSpec, OnConflict
from leasekeeper.core.schedules import CatchUp, OnOverlap, Schedule, Selection
from leasekeeper.errors import InputError
from leasekeeper.wire import fleet_schema, parse_fleet
from leasekeeper.wire.jobs import JOB
from leasekeeper.wire.schedules import template_body, template_from

PLAIN = {"cron": "30 3 * * *", "task": "sync", "profile": "p"}


def one(**fields: Any) -> Schedule:
    given = {**PLAIN, **fields}
    return parse_fleet({"schedules": {"s": {k: v for k, v in given.items() if v is not None}}}).schedules["s"]


def faults(schedule_id: str = "s", **fields: Any) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        parse_fleet({"schedules": {schedule_id: {**PLAIN, **fields}}})
    return {problem.where: problem.message for problem in caught.value.problems}


def test_a_plain_schedule_has_the_defaults() -> None:
    assert one() == Schedule(
        schedule_id="s",  # type: ignore[arg-type]  # an id is text on the wire
        cron="30 3 * * *",
        timezone="UTC",
        select=Selection(profile_id="p"),  # type: ignore[arg-type]  # the same
        on_overlap=OnOverlap.SKIP,
        catch_up=CatchUp.NONE,
        job=JobSpec(task="sync"),
    )


def test_what_a_job_has_stands_beside_the_times() -> None:
    given = one(
        profile=None,
        select={"account": "a", "pool": "warm", "labels": {"tier": "gold"}},
        payload={"n": 1},
        on_conflict="skip",
        pool="fast",
        labels={"x": "y"},
        jitter_seconds=30,
        retry={"reasons": ["TIMEOUT"]},
    )
    assert (given.select.account_id, given.select.pool, given.select.labels) == ("a", "warm", {"tier": "gold"})
    assert (given.job.pool, given.job.labels, given.job.on_conflict) == ("fast", {"x": "y"}, OnConflict.SKIP)
    assert given.jitter_seconds == 30
    assert template_from(template_body(given.job)) == given.job


def test_fields_that_each_job_has_of_its_own_are_no_fields_of_a_schedule() -> None:
    for name in (
        "job_id",
        "account_id",
        "profile_id",
        "idempotency_key",
        "run_at",
        "created_at",
        "attempt",
        "traceparent",
    ):
        assert f"schedules.s.{name}" in faults(**{name: "x"})
    properties = fleet_schema()["properties"]["schedules"]["additionalProperties"]["properties"]
    assert {field.name for field in JOB.table} - set(properties) == {
        "schema_version", "job_id", "account_id", "profile_id", "attempt", "idempotency_key", "run_at", "created_at",
        "traceparent",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "where", "message"),
    [
        ({"cron": "61 * * * *"}, "cron", "bad minute"),
        ({"cron": "* * * * * *"}, "cron", "five cron fields"),
        ({"cron": 5}, "cron", "put it in quotes"),
        ({"timezone": "Europe/Berln"}, "timezone", "did you mean Europe/Berlin?"),
        ({"task": None}, "task", "is required"),
        ({"cron": None}, "cron", "is required"),
        ({"profile": None}, "profile", "exactly one of them"),
        ({"select": {"pool": "x"}}, "profile", "exactly one of them"),
        ({"profile": None, "select": {}}, "select", "must name an account, a pool or labels"),
        ({"profile": None, "select": {"labels": {}}}, "select", "must name an account, a pool or labels"),
        ({"profile": None, "select": {"tear": "x"}}, "select.tear", "no such field"),
        ({"catch_up": "all"}, "catch_up", "needs on_overlap: queue"),
        ({"catch_up": "some"}, "catch_up", "one of none, last, all"),
        ({"jitter_seconds": -1}, "jitter_seconds", "a whole number from 0 to 86400"),
        ({"labels": {"schedule": "mine"}}, "labels", "schedule is set by the schedule itself"),
        ({"labels": {str(n): "x" for n in range(31)}}, "labels", "at most 30"),
        ({"retry": {"backoff": {"first_seconds": 9, "max_seconds": 1}}}, "retry.backoff.max_seconds", "not be less"),
    ],
)
def test_a_fault_is_named_where_it_is(fields: dict[str, Any], where: str, message: str) -> None:
    assert message in faults(**fields)[f"schedules.s.{where}"]


def test_all_is_taken_with_queue() -> None:
    assert one(catch_up="all", on_overlap="queue").catch_up is CatchUp.ALL


def test_an_id_leaves_room_for_the_key() -> None:
    assert "1 to 64" in faults("s" * 65)[f"schedules.{'s' * 65}"]


def test_a_difference_names_the_fields_as_the_file_does_and_hides_the_payload() -> None:
    before, after = (
        Fleet(schedules={"s": one(payload={"k": "hunter2"})}),
        Fleet(schedules={"s": one(payload={"k": "hunter3"}, priority=5, profile=None, select={"pool": "x"})}),
    )
    (change,) = diff(before, after, prune=False)
    assert "hunter" not in repr(change)
    assert change.fields == {
        "payload": ("(not shown)", "(not shown)"),
        "priority": (0, 5),
        "profile": ("p", None),
        "select": ({}, {"pool": "x"}),
    }
    assert diff(before, before, prune=True) == []
