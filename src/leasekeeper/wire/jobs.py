"""Parses jobs: one table has the fields of a job, their rules and their aliases.

Aliases are accepted on input and never stored. An unknown version is refused before anything else is checked.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from leasekeeper.core.decisions import MAX_PRIORITY
from leasekeeper.core.deliveries import BRIDGE
from leasekeeper.core.depth import MAX_DEPTH
from leasekeeper.core.ids import ID_PATTERN, ID_RULE
from leasekeeper.core.jobs import Backoff, JobSpec, OnConflict, Retry, Risk, RunMode, SessionMode
from leasekeeper.core.leases import Mode
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.errors import InputError, Problem
from leasekeeper.ports import MAX_IN_BATCH
from leasekeeper.wire.encoding import encode_in_full
from leasekeeper.wire.kinds import ID, Choice, Flag, Integer, JsonObject, Number, Problems, Text, Time
from leasekeeper.wire.records import DRAFT, Alias, Field, ListOf, MapOf, Record, any_of, at, table

JOB_SCHEMA_VERSION: Final = 1

MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_LABELS: Final = 32
MAX_LABEL_LENGTH: Final = 256
MAX_NOTES_BYTES: Final = 4 * 1024
MAX_ACTIONS: Final = 64
MAX_REASONS: Final = 64
MAX_ATTEMPTS: Final = 100
MAX_KEY_LENGTH: Final = 256
MAX_URL_LENGTH: Final = 2_048
MAX_EXPECTATION_LENGTH: Final = 128
LOCK_TIMEOUT_SECONDS: Final = (5, 86_400)
CONFLICT_DELAY_SECONDS: Final = (1, 604_800)
MAX_JSON_BYTES: Final = 64 * 1024 * 1024

MAX_PART_LENGTH: Final = 63  # of a host's name, between two dots
_WEB_ADDRESS: Final = (
    f"an http:// or https:// address of at most {MAX_URL_LENGTH} plain characters, "
    "with a host and without user or password"
)


def web_address_fault(text: str) -> str | None:
    """Why no webhook can be sent to this address; None if one can."""
    from urllib.parse import urlsplit

    sentence = f"must be {_WEB_ADDRESS}"
    if len(text) > MAX_URL_LENGTH or not text.isascii() or " " in text or "\\" in text:
        return sentence
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return sentence
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return sentence
    if not all(0 < len(part) <= MAX_PART_LENGTH for part in parts.hostname.rstrip(".").split(".")):
        return sentence
    if "@" in parts.netloc:
        return "must not hold a user or password: it would be shown to people; sign webhooks instead"
    return None


WEB_ADDRESS: Final = Text(_WEB_ADDRESS, maximum=MAX_URL_LENGTH, check=web_address_fault)

_BRIDGE: Final = re.compile(rf"{BRIDGE}(?:{ID_PATTERN})")


def _callback_fault(text: str) -> str | None:
    return None if not text or _BRIDGE.fullmatch(text) else web_address_fault(text)


_CALLBACK: Final = Text(_WEB_ADDRESS, maximum=MAX_URL_LENGTH, minimum=0, check=_callback_fault)


def labels(what: str) -> Field:
    """The field `labels`, the same on everything that has one."""
    value = Text(f"text of at most {MAX_LABEL_LENGTH} printable characters", maximum=MAX_LABEL_LENGTH, minimum=0)
    key = Text(f"text of 1 to {MAX_LABEL_LENGTH} printable characters", maximum=MAX_LABEL_LENGTH)
    rule = f"at most {MAX_LABELS} names with values, each text of at most {MAX_LABEL_LENGTH} characters"
    return Field(name="labels", kind=MapOf(rule, key, value, MAX_LABELS), doc=f"your own names for the {what}")


def notes(what: str) -> Field:
    """The field `notes`, the same on everything that has one."""
    kind = Text(f"text of at most {MAX_NOTES_BYTES} bytes", maximum=MAX_NOTES_BYTES, minimum=0, lines=True)
    return Field(name="notes", kind=kind, doc=f"what people should know about the {what}")


def _expectation(name: str, doc: str) -> Field:
    rule = f"text of 1 to {MAX_EXPECTATION_LENGTH} printable characters"
    return Field(name=name, kind=Text(rule, maximum=MAX_EXPECTATION_LENGTH), doc=doc)


_REASON: Final = Text(
    "a reason as TIMEOUT: 1 to 64 capital letters, digits and '_'", maximum=64, pattern="[A-Z][A-Z0-9_]{0,63}"
)

TRACEPARENT: Final = Text(
    "a traceparent as W3C Trace Context has it: 00-<32 hex digits>-<16>-<2>, in lower case, ids not all zero",
    maximum=55,
    pattern="00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}",
)

BACKOFF: Final = Record(
    [
        Field(
            name="first_seconds",
            kind=Number(0, 604_800, seconds=True),
            doc="delay before the second attempt",
            into="first",
        ),
        Field(name="factor", kind=Number(1, 100), doc="each further delay is multiplied by this"),
        Field(
            name="max_seconds",
            kind=Number(0, 604_800, seconds=True),
            doc="the longest delay",
            into="max",
        ),
    ],
    of=Backoff,
    camel=True,
)

RETRY: Final = Record(
    [
        Field(
            name="reasons",
            kind=ListOf(_REASON, MAX_REASONS),
            doc="the only reasons that may be retried; without it, the failure table decides",
        ),
        Field(name="backoff", kind=BACKOFF, doc="the delays between attempts; without it, the fleet's setting"),
    ],
    of=Retry,
    camel=True,
)

_EXCLUSIVE_LOCK: Final = Alias(
    "requires_exclusive_profile_lock", Flag(), {True: Mode.EXCLUSIVE.value, False: Mode.SHARED.value}
)
_REVIEW_ON_CONFLICT: Final = Alias(
    "human_review_on_lock_conflict", Flag(), {True: OnConflict.REVIEW.value, False: OnConflict.WAIT.value}
)

JOB: Final = Record(
    [
        Field(
            name="schema_version",
            kind=Integer(JOB_SCHEMA_VERSION, JOB_SCHEMA_VERSION),
            doc="the version of this schema",
            into="",
        ),
        Field(
            name="job_id",
            kind=ID,
            doc="the job's name; the server makes a UUID if absent",
            aliases=(Alias("task_id"),),
        ),
        Field(name="account_id", kind=ID, doc="the account to operate; this or profile_id is needed"),
        Field(
            name="profile_id",
            kind=ID,
            doc="the profile to run in; may be left out if the account has one only",
        ),
        Field(
            name="task",
            kind=Text(f"the name of a task: {ID_RULE}", maximum=ID.maximum, pattern=ID.pattern),
            doc="the registered task to run",
            required=True,
            aliases=(Alias("task_type"),),
        ),
        Field(
            name="payload",
            kind=JsonObject(MAX_PAYLOAD_BYTES, MAX_DEPTH),
            doc="the input of the task: data, never code",
        ),
        Field(
            name="attempt",
            kind=Integer(0, 1_000_000),
            doc="accepted for manifests that carry it, and ignored: the server counts attempts",
            into="",
        ),
        Field(name="max_attempts", kind=Integer(1, MAX_ATTEMPTS), doc="runs before the job is dead"),
        Field(
            name="idempotency_key",
            kind=Text(f"text of 1 to {MAX_KEY_LENGTH} printable characters", maximum=MAX_KEY_LENGTH),
            doc="the same key with the same body gives the first job back; with another body it is an error",
        ),
        Field(
            name="priority",
            kind=Integer(-MAX_PRIORITY, MAX_PRIORITY),
            doc="higher runs first, over all profiles",
        ),
        Field(name="run_at", kind=Time(), doc="not before this time"),
        Field(name="pool", kind=ID, doc="the workers to run it; without it, the profile's pool"),
        Field(
            name="mode",
            kind=Choice(Mode),
            doc="shared is for read-only tasks, which may run beside each other in one profile",
            aliases=(_EXCLUSIVE_LOCK,),
        ),
        Field(
            name="allowed_actions",
            kind=ListOf(ID, MAX_ACTIONS),
            doc="what the task may do; any other action stops the run. Without it, everything",
        ),
        _expectation("expected_proxy_region", "the job waits unless the profile's proxy is in this region"),
        _expectation("expected_language", "the job waits unless the profile has this language"),
        _expectation("expected_timezone", "the job waits unless the profile has this timezone"),
        Field(name="proxy_id", kind=ID, doc="the job waits unless the profile has this proxy"),
        Field(
            name="run_mode",
            kind=Choice(RunMode),
            doc="whether the browser has a window; visible waits for a worker whose machine has a display",
        ),
        Field(
            name="session_mode",
            kind=Choice(SessionMode, {"temporary": SessionMode.ISOLATED}),
            doc="isolated, or temporary: in a throwaway copy of the profile, where what it changes is lost",
        ),
        Field(name="risk_level", kind=Choice(Risk), doc="review_required waits for a person's approval"),
        Field(
            name="lock_timeout_seconds",
            kind=Integer(*LOCK_TIMEOUT_SECONDS),
            doc="how long the lease lasts without a heartbeat; without it, the fleet's setting",
        ),
        Field(
            name="release_policy",
            kind=Choice(ReleasePolicy),
            doc="what becomes of the profile if the worker vanishes; can only be stricter than the profile's",
        ),
        Field(
            name="on_conflict",
            kind=Choice(OnConflict),
            doc="what to do while the job is due and its profile leased to another run, whichever came first",
            aliases=(_REVIEW_ON_CONFLICT,),
        ),
        Field(
            name="conflict_delay_seconds",
            kind=Integer(*CONFLICT_DELAY_SECONDS),
            doc="when to try again under on_conflict: reschedule",
        ),
        Field(name="retry", kind=RETRY, doc="this job's own retry rule"),
        Field(
            name="callback_url",
            kind=_CALLBACK,
            doc=f'the webhook that is called when the job has ended; {BRIDGE}NAME is the queue of a bridge; "" is none',
        ),
        Field(
            name="traceparent",
            kind=TRACEPARENT,
            doc="the trace that the job is part of; without it, that of the caller who submits it",
        ),
        Field(name="created_at", kind=Time(), doc="when the job was made; without it, when it arrived"),
        labels("job"),
        notes("job"),
    ],
    of=JobSpec,
    camel=True,
)

# Two submissions with one key are the same job even if they differ in these.
_NOT_OF_THE_BODY: Final = frozenset({"job_id", "created_at", "idempotency_key", "traceparent"})


def parse_job(data: object, where: str = "") -> JobSpec:
    """One job from plain JSON types. Raises InputError that names every field at fault."""
    problems = Problems()
    values = _read_job(data, where, problems)
    problems.raise_any("the job is not acceptable")
    return spec_from(values)


def parse_jobs(data: object) -> list[JobSpec]:
    """One job, or a list of up to MAX_IN_BATCH. Problems in a list are found at `jobs[3].priority`."""
    if not isinstance(data, list | tuple):
        return [parse_job(data)]
    if len(data) > MAX_IN_BATCH:
        raise InputError(
            "the jobs are not acceptable",
            [Problem("jobs", f"at most {MAX_IN_BATCH} at once, not {len(data)}: send them in parts")],
        )
    problems = Problems()
    read = [_read_job(item, f"jobs[{n}]", problems) for n, item in enumerate(data)]
    for clash in same_ids((n, v.get("job_id"), v.get("idempotency_key")) for n, v in enumerate(read)):
        problems.add(clash.where, clash.message)
    problems.raise_any("the jobs are not acceptable; none was accepted")
    return [spec_from(values) for values in read]


def job_from_json(text: str | bytes) -> JobSpec:
    """One job from JSON text."""
    return parse_job(load_json(text))


def jobs_from_json(text: str | bytes) -> list[JobSpec]:
    """One job or a list of jobs from JSON text."""
    return parse_jobs(load_json(text))


def job_body(spec: JobSpec) -> dict[str, Any]:
    """The job as a client would send it, without defaults. `parse_job` gives the spec back."""
    body: dict[str, Any] = {}
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name != "attempt" and value != field.default and value != {}:
            body[field.name] = encode_in_full(value)
    return body


def fingerprint(spec: JobSpec) -> str:
    """A hash of the body, by which two submissions are the same job.

    Spelling does not matter. Defaults are not part of it, so a field that a later version adds does not change old
    fingerprints.
    """
    from hashlib import sha256

    body = {name: value for name, value in job_body(spec).items() if name not in _NOT_OF_THE_BODY}
    if str(body.get("callback_url")).startswith(BRIDGE):  # a bridge adds it depending on its options
        del body["callback_url"]
    text = json.dumps(_canonical(body), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()


def job_schema() -> dict[str, Any]:
    """The JSON Schema of a job."""
    shape = JOB.schema()
    owner = any_of([*JOB.names("account_id"), *JOB.names("profile_id")])
    return {
        "$schema": DRAFT,
        "$id": f"urn:leasekeeper:job:{JOB_SCHEMA_VERSION}",
        "title": "Leasekeeper job",
        "description": "One request: run this task for this account, in this profile and environment.",
        **shape,
        "allOf": [*shape["allOf"], owner],
    }


def job_table() -> str:
    """The fields of a job as a Markdown table."""
    retry = [("`retry." + row[0][1:], *row[1:]) for row in RETRY.rows()]
    backoff = [("`retry.backoff." + row[0][1:], *row[1:]) for row in BACKOFF.rows()]
    return table([*JOB.rows(), *retry, *backoff])


def _read_job(data: object, where: str, problems: Problems) -> dict[str, Any]:
    if isinstance(data, Mapping) and not _is_known_version(data, where, problems):
        return {}
    values = JOB.read(data, where, problems)
    if isinstance(data, Mapping) and "task" not in values and (read := _id_names(data)):
        problems.add(at(where, "task"), f"{read} was read as job_id, the name of this job, and not as the task to run")
    if isinstance(data, Mapping) and "account_id" not in values and "profile_id" not in values:
        problems.add(at(where, "account_id"), "account_id or profile_id is required: whose job is it?")
    check_backoff(values, where, problems)
    return values


def _id_names(data: Mapping[str, object]) -> str:
    """The alias that the manifest uses for its id, if that can be mistaken for the task's name."""
    return next((name for name in ("task_id", "taskId") if name in data), "")


def check_backoff(values: Mapping[str, Any], where: str, problems: Problems) -> None:
    """The longest delay between attempts is not shorter than the first."""
    backoff = (values.get("retry") or {}).get("backoff") or {}
    if all(backoff.get(name, True) is not None for name in ("first", "max")):
        shortest, longest = backoff.get("first", Backoff().first), backoff.get("max", Backoff().max)
        if shortest > longest:
            problems.add(at(where, "retry.backoff.max_seconds"), "must not be less than first_seconds")


def _is_known_version(data: Mapping[Any, Any], where: str, problems: Problems) -> bool:
    for name in JOB.names("schema_version"):
        version = data.get(name)
        if version is not None and (isinstance(version, bool) or version != JOB_SCHEMA_VERSION):
            problems.add(
                at(where, name),
                f"must be {JOB_SCHEMA_VERSION}, the one this program knows; for a newer one upgrade it",
            )
            return False
    return True


def same_ids(jobs: Iterable[tuple[int, str | None, str | None]]) -> Iterator[Problem]:
    """Jobs (number, id, idempotency key) that have the id of an earlier one.

    A job that came twice, with its key, is not two jobs of one id: the store gives the first one back.
    """
    first: dict[str, tuple[int, str | None]] = {}
    for number, job_id, key in jobs:
        if job_id is None:
            continue
        before, its_key = first.setdefault(job_id, (number, key))
        if before != number and (key is None or key != its_key):
            yield Problem(f"jobs[{number}].job_id", f"is the same as jobs[{before}].job_id")


def spec_from(values: dict[str, Any]) -> JobSpec:
    """The job out of values that were read."""
    if "retry" in values:
        retry = dict(values["retry"])
        if "backoff" in retry:
            retry["backoff"] = Backoff(**retry["backoff"])
        values = {**values, "retry": Retry(**retry)}
    if values.get("callback_url") == "":
        values = {**values, "callback_url": None}
    if "release_policy" in values:
        values = {**values, "release_policy": str(values["release_policy"])}
    return JobSpec(**values)


def _canonical(value: Any) -> Any:
    """The value with 3.0 written as 3: other languages do not distinguish them, and may send either."""
    match value:
        case float():
            return int(value) if value.is_integer() and abs(value) < 2**53 else value
        case dict():
            return {key: _canonical(item) for key, item in value.items()}
        case list():
            return [_canonical(item) for item in value]
        case _:
            return value


def load_json(text: str | bytes) -> object:
    """JSON as RFC 8259 has it: no NaN, no key twice, UTF-8."""
    if len(text) > MAX_JSON_BYTES:
        raise InputError(f"the JSON is longer than {MAX_JSON_BYTES // 1024**2} MiB: send the jobs in parts")
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8-sig")
        return json.loads(decoded, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg}, line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"not JSON: byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise InputError("not acceptable JSON: it is nested too deep") from None
    except ValueError:
        raise InputError("not acceptable JSON: it holds a number with too many digits") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    read = dict(pairs)
    if len(read) < len(pairs):
        times = Counter(name for name, _ in pairs)
        known = [name for name, count in times.items() if count > 1 and JOB.knows(name)]
        raise InputError(f"not acceptable JSON: an object holds {known[0] if known else 'a key'} twice")
    return read


def _no_constant(name: str) -> object:
    raise InputError(f"not JSON: {name} is no JSON number")
