"""The queue: jobs by state and by what blocks them, one job with its `why`, and the form that submits one."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from leasekeeper.core.accounts import Account
from leasekeeper.core.decisions import JOB_ACTIONS, Action
from leasekeeper.core.events import Event
from leasekeeper.core.jobs import Job, JobSpec, JobState
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import Profile
from leasekeeper.core.readiness import Blocked
from leasekeeper.core.workers import Worker
from leasekeeper.errors import InputError, LeasekeeperError
from leasekeeper.ports import Page
from leasekeeper.service.pages.actions import MAX_AT_ONCE, answer, refused_text, select
from leasekeeper.service.pages.filter_language import Asked, read_filter
from leasekeeper.service.pages.rendering import field_text, link, page
from leasekeeper.service.pages.visit import PER_PAGE, Visit
from leasekeeper.wire.encoding import encode_in_full
from leasekeeper.wire.jobs import JOB, job_body, parse_job
from leasekeeper.wording import UNBLOCKED_BY
from leasekeeper.wording.why import why_text

MAX_EVENTS: Final = 100
# Actions on all that match, in the order of the menu.
FOR_ALL: Final = (
    Action.CANCEL,
    Action.REQUEUE,
    Action.PRIORITIZE,
    Action.APPROVE,
    Action.RETRY,
    Action.DROP,
)
# Fields that most people fill in; the others are behind "more".
FIRST: Final = ("task", "account_id", "profile_id", "payload", "priority", "run_at", "max_attempts", "notes")
# Maximum number of accounts, profiles and tasks that are suggested while typing.
NAMED: Final = 200
# Fields that the server or a program sets.
NOT_ASKED: Final = frozenset({"schema_version", "job_id", "attempt", "created_at"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One field of the form."""

    name: str
    doc: str
    kind: str
    choices: tuple[str, ...]
    value: str
    required: bool
    wrong: str
    first: bool


async def view(visit: Visit) -> Response:
    asked = read_filter(Job, visit.query.get("q", ""))
    found: Page[Job] = Page(items=())
    if not asked.problems:
        found = await visit.find(Job, asked.where, after=visit.query.get("after"), limit=PER_PAGE)
    chosen, count = await _for_all(visit, asked)
    return await page(
        visit,
        "queue.html",
        title="Queue",
        asked=asked,
        found=found,
        states=tuple(JobState),
        next_of=next_of,
        for_all=[action.value for action in FOR_ALL if visit.may("job", action)],
        chosen=chosen,
        count=count,
        at_once=MAX_AT_ONCE,
    )


async def _for_all(visit: Visit, asked: Asked) -> tuple[str, int]:
    """The action that was chosen for all that match, and their number."""
    chosen = visit.query.get("act", "")
    if chosen not in {action.value for action in FOR_ALL} or asked.problems:
        return "", 0
    return chosen, len((await select(visit, "jobs", asked.text, Action(chosen))).ids)


def next_of(job: Job) -> str:
    """What a job waits for, in a sentence."""
    match job.state:
        case JobState.BLOCKED:
            return UNBLOCKED_BY[Blocked(job.blocked_reason)] if job.blocked_reason in set(Blocked) else job.detail
        case JobState.QUEUED:
            return "starts as soon as a worker of its pool is free"
        case JobState.SCHEDULED:
            return "starts when it is due"
        case JobState.REVIEW:
            return job.detail or "a person must decide"
        case _:
            return job.detail or job.stop_reason or ""


async def job(visit: Visit) -> Response:
    job_id = visit.path["id"]
    record, why, runs, events = await asyncio.gather(
        visit.get(Job, job_id),
        visit.why(job_id=job_id),
        visit.find(RunRecord, {"job_id": job_id}, limit=PER_PAGE),
        visit.find(Event, {"job_id": job_id}, limit=MAX_EVENTS),
    )
    return await page(
        visit,
        "job.html",
        title=f"Job {job_id}",
        job=record,
        why=why,
        text=why_text(why),
        runs=list(reversed(runs.items)),
        events=events.items,
        body=_pretty(job_body(_spec(record))),
        payload=_pretty(encode_in_full(record.payload)),
        actions=[action.value for action, states in JOB_ACTIONS.items() if record.state in states],
        field_text=field_text,
    )


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _spec(job: Job) -> JobSpec:
    """The job, as the form of a new submission."""
    names = set(JobSpec.__dataclass_fields__) - {"job_id", "attempt", "created_at", "idempotency_key"}
    return JobSpec(**{name: getattr(job, name) for name in names})


async def new_job(visit: Visit) -> Response:
    """The form: empty, or filled with an earlier job's fields."""
    source = visit.query.get("from")
    values: Mapping[str, Any] = {}
    if source:
        values = job_body(_spec(await visit.get(Job, source)))
    given = {name: visit.query[name] for name in ("account_id", "profile_id", "task") if name in visit.query}
    written = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return await _form(visit, {**written, **given}, {}, source=source)


async def _form(
    visit: Visit, values: Mapping[str, str], wrong: Mapping[str, str], *, source: str | None, said: str = ""
) -> Response:
    return await page(
        visit,
        "new_job.html",
        title="Submit a job",
        status=400 if wrong or said else 200,
        inputs=inputs(values, wrong),
        source=source,
        said=said,
        known=await _known(visit),
    )


async def _known(visit: Visit) -> dict[str, list[str]]:
    """Suggestions for each field: tasks that workers offer, and the first names in the fleet."""
    accounts, profiles, workers = await asyncio.gather(
        visit.find_if_allowed(Account, limit=NAMED),
        visit.find_if_allowed(Profile, limit=NAMED),
        visit.find_if_allowed(Worker, limit=NAMED),
    )
    return {
        "task": sorted({task for worker in workers if worker.stopped_at is None for task in worker.tasks}),
        "account_id": [each.account_id for each in accounts],
        "profile_id": [each.profile_id for each in profiles],
        "pool": sorted({each.pool for each in profiles}),
    }


def inputs(values: Mapping[str, str], wrong: Mapping[str, str]) -> list[Input]:
    """The fields of a job as inputs, made from the table by which jobs are parsed."""
    made = []
    for field in JOB.table:
        if field.name in NOT_ASKED:
            continue
        schema = field.kind.schema()
        made.append(
            Input(
                name=field.name,
                doc=field.doc,
                kind=_kind(schema),
                choices=tuple(str(each) for each in schema.get("enum", ())),
                value=values.get(field.name, ""),
                required=field.required,
                wrong=wrong.get(field.name, ""),
                first=field.name in FIRST or field.name in values,
            )
        )
    return sorted(made, key=lambda each: FIRST.index(each.name) if each.name in FIRST else len(FIRST))


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "choice"
    match schema.get("type"):
        case "integer":
            return "number"
        case "object" | "array":
            return "json"
        case _:
            return "text"


async def submit_job(visit: Visit) -> Response:
    """Submit what the form says, or show the form again with what is wrong beside each field."""
    form = await visit.form()
    source = form.pop("from", "") or None
    given = {name: text for name, text in form.items() if text.strip()}
    wrong: dict[str, str] = {}
    body = _body(given, wrong)
    try:
        if wrong:
            raise InputError("the job is not acceptable")
        (made,) = await visit.submit([parse_job(body)])
    except InputError as error:
        wrong |= {each.where.partition(".")[0].partition("[")[0]: each.message for each in error.problems}
        said = "" if wrong else error.message
        return await _form(visit, given, wrong, source=source, said=said)
    except LeasekeeperError as error:
        return await _form(visit, given, {}, source=source, said=refused_text(error, "the job"))
    text = "an earlier job with this key was there already: this is it" if made.already_handled else "job submitted"
    return answer(visit, link("", f"/ui/jobs/{made.job.job_id}"), f"{text}.", good=not made.already_handled)


def _body(given: Mapping[str, str], wrong: dict[str, str]) -> dict[str, Any]:
    """The fields of the form as the JSON of a job."""
    kinds = {each.name: each.kind for each in inputs({}, {})}
    body: dict[str, Any] = {}
    for name, text in given.items():
        try:
            body[name] = json.loads(text) if kinds.get(name) in ("number", "json") else text
        except ValueError:
            wrong[name] = "must be a whole number" if kinds[name] == "number" else 'must be JSON, as {"name": "value"}'
    return body
