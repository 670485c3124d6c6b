"""Parses schedules: the fields of `schedules.ID` in a fleet file, and the template of a schedule's jobs as JSON.

The template has the fields of a job in `wire.jobs`, without those that each job gets its own.
"""

from collections.abc import Mapping
from typing import Any, Final

from leasekeeper import cron
from leasekeeper.core.ids import ID_PATTERN, ProfileId, ScheduleId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.schedules import SCHEDULE_LABEL, TIME_LABEL, CatchUp, OnOverlap, Schedule, Selection
from leasekeeper.wire.jobs import JOB, MAX_LABELS, check_backoff, job_body, labels, spec_from
from leasekeeper.wire.kinds import ID, Choice, Integer, Kind, Problems, Text
from leasekeeper.wire.records import Field, Record, any_of, at

MAX_SCHEDULES: Final = 100_000
MAX_JITTER_SECONDS: Final = 86_400
MAX_ID_LENGTH: Final = 64  # an idempotency key holds a schedule's id beside a profile's and a time

# Each job of a schedule gets its own, or the store sets them.
_OF_EACH_JOB: Final = frozenset(
    {
        "schema_version", "job_id", "account_id", "profile_id", "attempt", "idempotency_key", "run_at", "created_at",
        "traceparent",
    }
)  # fmt: skip
_OWN_LABELS: Final = (SCHEDULE_LABEL, TIME_LABEL)

SCHEDULE_ID: Final = Text(
    f"an id: 1 to {MAX_ID_LENGTH} letters, digits, '.', '_' or '-', not starting with '.'",
    maximum=MAX_ID_LENGTH,
    pattern=ID_PATTERN,
)
TEMPLATE: Final = Record([field for field in JOB.table if field.name not in _OF_EACH_JOB], of=JobSpec)
SELECT: Final = Record(
    [
        Field(name="account", kind=ID, doc="profiles of this account", into="account_id"),
        Field(name="pool", kind=ID, doc="profiles of this pool"),
        Field(
            name="labels",
            kind=labels("profile").kind,
            doc="profiles that have all of these; a tier counts as label `tier`",
        ),
    ],
    of=Selection,
)


class _ScheduleRecord(Record):
    """A schedule, with the rules between its fields."""

    def read(self, value: object, where: str, problems: Problems) -> dict[str, Any]:
        values = super().read(value, where, problems)
        if not isinstance(value, Mapping):
            return values
        check_backoff(values, where, problems)
        profile, select = value.get("profile"), value.get("select")
        if (profile is None) == (select is None):
            problems.add(at(where, "profile"), "give profile (one), or select (all that match): exactly one of them")
        if isinstance(select, Mapping) and not any(select.values()):
            problems.add(at(where, "select"), "must name an account, a pool or labels")
        if values.get("catch_up") is CatchUp.ALL and values.get("on_overlap") is not OnOverlap.QUEUE:
            problems.add(
                at(where, "catch_up"),
                "all needs on_overlap: queue: the missed times come at once, and all but the first would be skipped",
            )
        own = values.get("labels") or {}
        for name in _OWN_LABELS:
            if name in own:
                problems.add(at(where, "labels"), f"{name} is set by the schedule itself: choose another name")
        if len(own) > MAX_LABELS - len(_OWN_LABELS):
            problems.add(at(where, "labels"), f"at most {MAX_LABELS - len(_OWN_LABELS)}: the schedule adds its own")
        return values

    def schema(self) -> dict[str, Any]:
        shape = super().schema()
        return {**shape, "allOf": [*shape["allOf"], any_of(["profile", "select"])]}


def schedule_record(timezone: Kind) -> Record:
    """The fields of `schedules.ID`."""
    own = [
        Field(
            name="cron",
            kind=Text(cron.RULE, maximum=cron.MAX_CRON_LENGTH, check=cron.fault),
            doc="when, in the time zone below",
            required=True,
        ),
        Field(name="timezone", kind=timezone, doc="the time zone of `cron`"),
        Field(
            name="jitter_seconds",
            kind=Integer(0, MAX_JITTER_SECONDS),
            doc="each job runs up to this much later, by a random delay",
        ),
        Field(name="profile", kind=ID, doc="the one profile; this or select is needed"),
        Field(name="select", kind=SELECT, doc="all profiles that match when the time comes"),
        Field(
            name="on_overlap",
            kind=Choice(OnOverlap),
            doc="what to do in a profile in which the schedule's previous job has not ended",
        ),
        Field(
            name="catch_up",
            kind=Choice(CatchUp),
            doc="which of the times that were missed in an outage are made up for",
        ),
    ]
    return _ScheduleRecord([*own, *TEMPLATE.table], of=(Schedule, JobSpec))


def schedule_from(schedule_id: str, values: dict[str, Any]) -> Schedule:
    """The schedule out of values that were read."""
    names = {field.attribute for field in TEMPLATE.table}
    own = {name: value for name, value in values.items() if name not in names}
    profile, select = own.pop("profile", None), own.pop("select", None)
    return Schedule(
        schedule_id=ScheduleId(schedule_id),
        select=Selection(profile_id=ProfileId(profile)) if profile else Selection(**select),
        job=spec_from({name: value for name, value in values.items() if name in names}),
        **own,
    )


def template_body(job: JobSpec) -> dict[str, Any]:
    """The template of a schedule's jobs as plain JSON types, without defaults."""
    return job_body(job)


def template_from(body: object) -> JobSpec:
    """The template that `template_body` wrote."""
    problems = Problems()
    values = TEMPLATE.read(body, "job", problems)
    problems.raise_any("the schedule's job is not acceptable")
    return spec_from(values)
