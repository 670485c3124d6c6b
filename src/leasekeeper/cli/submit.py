"""`leasekeeper submit`: one job by options, or many from a file: a JSON object, an array, or JSON lines.

Every job is checked before the first is sent; then they go in batches, each batch all or nothing.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import click

from leasekeeper.cli import traces
from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import with_store
from leasekeeper.cli.options import output
from leasekeeper.cli.output import answer_json
from leasekeeper.cli.progress import Progress
from leasekeeper.core.jobs import JobSpec, OnConflict, Risk, RunMode, SessionMode
from leasekeeper.core.leases import Mode
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.errors import (
    InputError,
    LeasekeeperError,
    PartlyDone,
    Problem,
    UnknownAccount,
    UnknownProfile,
    UnknownTask,
)
from leasekeeper.ports import MAX_IN_BATCH, Submitted

if TYPE_CHECKING:
    from datetime import datetime

    from leasekeeper.ports import Store

MAX_CHARACTERS_OF_FILE: Final = 512 * 1024 * 1024
MAX_SHOWN: Final = 20
JOB_FILES: Final = (".json", ".jsonl", ".ndjson")
_WHITESPACE: Final = " \t\r\n"


class Found(NamedTuple):
    """One job of a file, and the line that it begins on; None: it is an element of an array."""

    document: object
    line: int | None


@click.command("submit")
@click.argument("task", metavar="TASK|FILE.json", required=False, shell_complete=ids("task"))
@click.option(
    "--account",
    "account_id",
    metavar="ID",
    shell_complete=ids("account"),
    help="The account. Enough if it has one profile.",
)
@click.option("--profile", "profile_id", metavar="ID", shell_complete=ids("profile"), help="The profile to run in.")
@click.option("--payload", metavar="JSON|@FILE", help="The task's payload: a JSON object, or a file with one.")
@click.option("--priority", metavar="N", type=int, help="Higher runs first.")
@click.option("--run-at", metavar="TIME", help="Not before: 2026-05-01T09:30:00Z, or from now: +90s, +10m, +2h, +1d.")
@click.option(
    "--key",
    "idempotency_key",
    metavar="KEY",
    help="Idempotency key: the same key and job again is the first job.",
)
@click.option(
    "--pool",
    metavar="POOL",
    shell_complete=ids("pool"),
    help="Which workers may take it.  [default: the profile's pool]",
)
@click.option("--mode", type=click.Choice([str(mode) for mode in Mode]), help="shared: read-only, beside others.")
@click.option("--job-id", "job_id", metavar="ID", help="The job's name.  [default: a UUID]")
@click.option("--max-attempts", metavar="N", type=int, help="Runs before the job is dead.")
@click.option(
    "--on-conflict",
    type=click.Choice([str(each) for each in OnConflict]),
    help="What to do while its profile is leased to another run.",
)
@click.option("--conflict-delay", "conflict_delay_seconds", metavar="SECONDS", type=int, help="For reschedule.")
@click.option(
    "--risk",
    "risk_level",
    type=click.Choice([str(each) for each in Risk]),
    help="review_required waits for a person's approval.",
)
@click.option(
    "--expect-region",
    "expected_proxy_region",
    metavar="REGION",
    help="Blocked unless the profile's proxy is in this region.",
)
@click.option(
    "--expect-language", "expected_language", metavar="LANGUAGE", help="Blocked unless the profile has this language."
)
@click.option(
    "--expect-timezone", "expected_timezone", metavar="ZONE", help="Blocked unless the profile has this time zone."
)
@click.option(
    "--proxy", "proxy_id", metavar="ID", shell_complete=ids("proxy"), help="Blocked unless the profile has this proxy."
)
@click.option(
    "--run-mode", type=click.Choice([str(each) for each in RunMode]), help="Whether the browser has a window."
)
@click.option(
    "--session-mode",
    type=click.Choice([str(each) for each in SessionMode]),
    help="isolated: in a throwaway copy of the profile.",
)
@click.option(
    "--release-policy",
    type=click.Choice([str(each) for each in ReleasePolicy]),
    help="What becomes of the profile if the worker vanishes; can only be stricter than the profile's.",
)
@click.option(
    "--lock-timeout",
    "lock_timeout_seconds",
    metavar="SECONDS",
    type=int,
    help="Lease TTL: how long a lease lives without a heartbeat.",
)
@click.option(
    "--allow",
    "allowed_actions",
    metavar="ACTION",
    multiple=True,
    help="An action that the task may perform; may be given several times. Others stop the run.",
)
@click.option("--notes", metavar="TEXT", help="For people.")
@click.option("--callback", "callback_url", metavar="URL", help="URL of the webhook that is sent when the job ends.")
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="A label; may be given several times.")
@click.option(
    "--file",
    type=click.File("r", encoding="utf-8-sig"),
    help="Many jobs: a JSON object, an array, or JSON lines; - is stdin.",
)
@click.option("--strict", is_flag=True, help="Refuse a task that no worker has offered (setting strict_tasks).")
@output
def command(
    task: str | None, file: IO[str] | None, strict: bool, store: str | None, as_json: bool, **options: Any
) -> None:
    """Submit one job for TASK, or the jobs of a file (FILE.json, FILE.jsonl, or --file).

    A job is accepted when this returns: it waits in its profile's queue, for its time, or for what blocks
    it. A task that no worker offers is warned about, and refused with --strict.
    """
    traces.start("leasekeeper-submit")
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if file is None and task is not None and task.endswith(JOB_FILES):
        file, task = _opened(task), None
    if file is None:
        if task is None:
            raise click.UsageError("name the task, or give --file")
        if not {"account_id", "profile_id"} & given.keys():
            raise click.UsageError("name the profile: --account or --profile")
        specs, lines = [_one(task, given)], list[int | None]([None])
    elif task is not None or given:
        raise click.UsageError("--file has whole jobs: it cannot be combined with a task or the options of a job")
    else:
        specs, lines = _many(file)
    try:
        answers, warned = with_store(store, lambda opened: _send_and_check(opened, specs), strict_tasks=strict)
    except LeasekeeperError as error:
        raise error.restored(error.message, _with_lines(error.problems, lines), error.data) from error
    if as_json:
        answer_json({**_document(answers), "warnings": warned})
        return
    _report(answers)
    for warning in warned:
        click.echo(f"leasekeeper: {warning}", err=True)


def _with_lines(problems: Sequence[Problem], lines: Sequence[int | None]) -> list[Problem]:
    """The store's problems, with the lines of the file that they are about."""
    named = [at_line(lines[at], problem) if (at := _place_of(problem)) is not None else problem for problem in problems]
    more = len(named) - MAX_SHOWN
    return named if more <= 0 else [*named[:MAX_SHOWN], Problem("", f"and {more:,} more")]


def _place_of(problem: Problem) -> int | None:
    """Which job of the batch it is about: `jobs[3].priority`."""
    number = problem.where.partition("]")[0].removeprefix("jobs[")
    return int(number) if number.isdecimal() else None


def at_line(line: int | None, problem: Problem) -> Problem:
    """The problem, with the line of a file that it is on; None: there is no such line."""
    return problem if line is None else Problem(f"line {line}, {problem.where}", problem.message)


def _opened(name: str) -> IO[str]:
    """A file of jobs given in place of a task: task names do not end with .json or .jsonl."""
    try:
        return click.get_current_context().with_resource(Path(name).open(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from None


async def _send_and_check(store: "Store", specs: Sequence[JobSpec]) -> tuple[list[Submitted], list[str]]:
    from leasekeeper.cli.task_names import warnings, with_hint

    try:
        answers = await send(store, specs)
    except UnknownTask as error:
        raise await with_hint(store, error, (spec.task for spec in specs)) from None
    except (UnknownAccount, UnknownProfile) as error:
        raise await _with_nearest(store, error) from None
    return answers, await warnings(store, answers)


async def _with_nearest(store: "Store", error: UnknownAccount | UnknownProfile) -> UnknownAccount | UnknownProfile:
    """The refusal, with the most similar id as a hint."""
    from leasekeeper.cli.record_ids import nearest_id
    from leasekeeper.core.accounts import Account
    from leasekeeper.core.profiles import Lane

    unknown = error.profile_id if isinstance(error, UnknownProfile) else error.account_id
    kind = Lane if isinstance(error, UnknownProfile) else Account
    meant = await nearest_id(store, kind, unknown or "")
    if meant is not None and meant != unknown:
        error.message += f"\n  {unknown}: did you mean {meant}?"
    return error


def _one(task: str, given: dict[str, Any]) -> JobSpec:
    from leasekeeper.wire import parse_job

    document: dict[str, Any] = {"task": task, **given}
    if "payload" in given:
        document["payload"] = _payload(given["payload"])
    if "allowed_actions" in given:
        document["allowed_actions"] = list(given["allowed_actions"])
    if "labels" in given:
        document["labels"] = _labels(given["labels"])
    if "run_at" in given:
        document["run_at"] = due(given["run_at"])
    return parse_job(document)


def _payload(text: str) -> object:
    where = "--payload"
    if text.startswith("@"):
        where = f"--payload {text}"
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("the payload cannot be read", [Problem(where, str(error))]) from None
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError("the payload is not JSON", [Problem(where, str(error))]) from None


def _labels(pairs: Sequence[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    wrong = [Problem("--label", f"{name!r} has no '=': write NAME=VALUE") for name, equals, _ in split if not equals]
    if wrong:
        raise InputError("a label is wrong", wrong)
    return {name: value for name, _, value in split}


def due(text: str, option: str = "--run-at", now: "datetime | None" = None) -> str:
    """The time that was given, or `+10m` from now."""
    if not text.startswith("+"):
        return text
    from datetime import UTC, datetime, timedelta

    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    number, unit = text[1:-1], units.get(text[-1])
    if unit is None or not number.isascii() or not number.isdigit():
        raise InputError("the time is wrong", [Problem(option, "from now is written as +90s, +10m, +2h or +1d")])
    try:
        return ((now or datetime.now(UTC)) + timedelta(**{unit: int(number)})).isoformat()
    except OverflowError:
        raise InputError("the time is wrong", [Problem(option, "is too far away")]) from None


def _many(file: IO[str]) -> tuple[list[JobSpec], list[int | None]]:
    """The jobs of a file, and the line of each."""
    name = getattr(file, "name", "<stdin>")
    try:
        text = file.read(MAX_CHARACTERS_OF_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name} cannot be read: {error}") from None
    if len(text) > MAX_CHARACTERS_OF_FILE:
        raise InputError(f"{name} is longer than {MAX_CHARACTERS_OF_FILE:,} characters: split it")
    documents, faults = _documents(text, name)
    if not documents and not faults:
        raise InputError(f"{name} has no jobs in it")
    return _parsed(documents, faults), [found.line for found in documents]


def _documents(text: str, name: str) -> tuple[list[Found], list[Problem]]:
    """The jobs of a file: the elements of an array, or one object after the other. In a file of JSON lines every
    invalid line is reported.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
    found: list[Found] = []
    faults: list[Problem] = []
    position, lines = _skip(text, 0), _LineCounter(text)
    while position < len(text) and len(faults) <= MAX_SHOWN:
        line = lines.at(position)
        try:
            document, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            where = error.lineno if isinstance(error, json.JSONDecodeError) else line
            end = text.find("\n", position)
            one_line = end >= 0 and (_is_job_line(text, end) or (where == line and bool(found or faults)))
            if not one_line:
                problem = _not_json(name, error, where)
                if not faults:
                    raise InputError(problem.message) from None
                return found, [*faults, problem]
            faults.append(_not_json(name, _fault_of_line(decoder, text[position:end]) or error, line))
        else:
            several = isinstance(document, list)
            found += [Found(each, None if several else line) for each in (document if several else [document])]
        position = _skip(text, end)
    return found, faults


def _is_job_line(text: str, end: int) -> bool:
    """Whether another job follows on a line of its own: then the file is JSON lines."""
    after = _skip(text, end)
    return text[after : after + 1] == "{"


def _fault_of_line(decoder: json.JSONDecoder, line: str) -> Exception | None:
    """The fault of a line that ends too early: the JSON reader would report it on a later line."""
    try:
        decoder.raw_decode(line)
    except (ValueError, RecursionError) as error:
        return error
    return None


def _not_json(name: str, error: Exception, line: int) -> Problem:
    said = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    column = f" column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
    return Problem("", f"{name} is not JSON: line {line}{column}: {said}")


class _LineCounter:
    """The line number of an offset in a text, for offsets in ascending order."""

    def __init__(self, text: str) -> None:
        self._text, self._place, self._line = text, 0, 1

    def at(self, place: int) -> int:
        self._line += self._text.count("\n", self._place, place)
        self._place = place
        return self._line


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("an object has one key twice")
    return document


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON number")


def _parsed(documents: Sequence[Found], faults: Sequence[Problem]) -> list[JobSpec]:
    """Check every job, and report every fault with its line, before the first is sent."""
    from leasekeeper.wire import parse_job
    from leasekeeper.wire.jobs import same_ids

    if len(documents) == 1 and not faults:
        return [parse_job(documents[0].document)]
    specs: list[JobSpec] = []
    problems: list[Problem] = list(faults)
    ids: list[tuple[int, str | None, str | None]] = []
    for number, found in enumerate(documents):
        try:
            spec = parse_job(found.document, f"jobs[{number}]")
        except InputError as error:
            problems += [at_line(found.line, problem) for problem in error.problems]
        else:
            specs.append(spec)
            ids.append((number, spec.job_id, spec.idempotency_key))
        if len(problems) > MAX_SHOWN:
            problems[MAX_SHOWN:] = [Problem("", "and perhaps more")]
            break
    problems += islice(same_ids(ids), MAX_SHOWN)
    if problems:
        raise InputError("the jobs are not acceptable; none was submitted", problems)
    return specs


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _WHITESPACE:
        position += 1
    return position


def _traced(spec: JobSpec) -> JobSpec:
    """The job with the trace of the calling program, which is in the environment by convention."""
    from leasekeeper.runtime.tracing import from_header

    parent = None if spec.traceparent else from_header(os.environ.get("TRACEPARENT"))
    return spec if parent is None else replace(spec, traceparent=parent)


async def send(store: "Store", specs: Sequence[JobSpec]) -> list[Submitted]:
    """Submit in batches, each all or nothing."""
    from leasekeeper.runtime import tracing

    answers: list[Submitted] = []
    with Progress("submitted", "jobs", len(specs)) as progress:
        for start in range(0, len(specs), MAX_IN_BATCH):
            try:
                with tracing.submitting([_traced(spec) for spec in specs[start : start + MAX_IN_BATCH]]) as traced:
                    accepted = await store.submit(traced.specs)
                    traced.done(accepted)
                answers += accepted
            except LeasekeeperError as error:
                if len(specs) <= MAX_IN_BATCH:
                    raise
                problems = [problem.moved("jobs", start) for problem in error.problems]
                far = _how_far(start, len(specs))
                said = far if problems else f"{error.message}; {far}"
                if start:
                    raise PartlyDone(said, problems, done=start, total=len(specs), stopped_by=error.code) from error
                raise error.restored(said, problems, error.data) from error
            except BaseException:
                if answers:
                    click.echo(f"stopped: {len(answers):,} of {len(specs):,} jobs were accepted", err=True)
                raise
            if len(specs) > MAX_IN_BATCH:
                progress.at(len(answers))
    return answers


def _how_far(accepted: int, total: int) -> str:
    batch = f"jobs {accepted + 1:,} to {min(accepted + MAX_IN_BATCH, total):,}"
    before = f"the {accepted:,} before them were accepted" if accepted else "nothing was accepted"
    return f"this was in {batch} of {total:,}; {before}, nothing from there on"


def _document(answers: Sequence[Submitted]) -> dict[str, object]:
    items = [
        {
            "job_id": answer.job.job_id,
            "asked_id": answer.asked_id,
            "profile_id": answer.job.profile_id,
            "state": str(answer.job.state),
            "blocked_reason": answer.job.blocked_reason,
            "already_handled": answer.already_handled,
            "decision": answer.decision,
        }
        for answer in answers
    ]
    known = sum(answer.already_handled for answer in answers)
    return {"items": items, "submitted": len(answers) - known, "already_handled": known}


def _report(answers: Sequence[Submitted]) -> None:
    if len(answers) == 1:
        click.echo(sentence(answers[0]))
        return
    known = [answer for answer in answers if answer.already_handled]
    click.echo(f"submitted {len(answers) - len(known):,} jobs, {len(known):,} were already handled")
    for answer in known[:MAX_SHOWN]:
        click.echo(f"  {sentence(answer)}")
    if len(known) > MAX_SHOWN:
        click.echo(f"  … and {len(known) - MAX_SHOWN:,} more")


def sentence(answer: Submitted) -> str:
    """What became of one job."""
    job = answer.job
    if answer.already_handled:
        asked = f"job {answer.asked_id} was " if answer.asked_id and answer.asked_id != job.job_id else ""
        return f"{asked}already handled: key {job.idempotency_key} is job {job.job_id}, {job.state}"
    parts = [f"job {job.job_id} is {job.state}", f"profile {job.profile_id}"]
    if job.blocked_reason:
        parts.append(job.blocked_reason)
    if answer.decision:
        parts.append(f"its profile is taken: {answer.decision}")
    return ", ".join(parts)
