"""Submitting jobs, `why`, counts, the fleet and tokens over HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from leasekeeper.core.accounts import Account, Limit, Proxy
from leasekeeper.core.fleet import Change, Fleet, tag_of
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.profiles import Profile
from leasekeeper.core.schedules import Schedule
from leasekeeper.core.tokens import (
    MAX_LIFETIME,
    MAX_NAME,
    MAX_RESTRICTIONS,
    OPERATIONS,
    ApiToken,
    Needs,
    Reach,
    Scope,
    denial,
)
from leasekeeper.core.why import explain
from leasekeeper.core.why_answer import Why
from leasekeeper.errors import Forbidden, InputError, Problem
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Stats, Submitted
from leasekeeper.runtime import tracing
from leasekeeper.runtime.snapshot_housekeeping import fleet_profile_store
from leasekeeper.service.auth import create_token
from leasekeeper.service.permissions import refuse
from leasekeeper.service.routing import Body, Call, Parameter, Route, Subject
from leasekeeper.wire import fleet_schema, job_schema, parse_fleet, parse_jobs
from leasekeeper.wire.kinds import ID, Choice, Number, Problems, Text
from leasekeeper.wire.records import Field, ListOf, Record

MAX_KEY: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJobs:
    """The answers to the jobs of one call, in their order."""

    items: Sequence[Submitted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The difference between the fleet that was sent and the one in force before."""

    items: Sequence[Change]
    applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWithText:
    """A new token. `text` is shown this once."""

    created: ApiToken
    text: str = field(repr=False)


def _jobs_schema() -> Mapping[str, Any]:
    one = {name: value for name, value in job_schema().items() if name not in ("$schema", "$id")}
    return {"anyOf": [one, {"type": "array", "items": one, "maxItems": MAX_IN_PAGE}]}


async def submit(call: Call) -> SubmittedJobs:
    """Accept jobs, all or none. 201 if any of them is new."""
    specs: list[JobSpec] = call.body
    key: str | None = call.query.get("Idempotency-Key")
    if key is not None:
        if len(specs) != 1:
            raise InputError("nothing was submitted", [Problem("Idempotency-Key", "is for one job: send one")])
        if specs[0].idempotency_key not in (None, key):
            raise InputError("nothing was submitted", [Problem("Idempotency-Key", "differs from idempotency_key")])
        specs = [replace(specs[0], idempotency_key=key)]
    if call.token is not None and (call.token.accounts or call.token.pools):
        for place in await call.service.permissions.places("submit", {"specs": specs}):
            refuse(denial(call.token, OPERATIONS["submit"], account=place.account, pool=place.pool))
    if (parent := tracing.from_header(call.query.get("traceparent"))) is not None:
        specs = [each if each.traceparent else replace(each, traceparent=parent) for each in specs]
    with tracing.submitting(specs) as traced:
        answers = await call.service.store.submit(traced.specs)
        traced.done(answers)
    call.status = 200 if all(each.already_handled for each in answers) else 201
    return SubmittedJobs(items=answers)


async def why_job(call: Call) -> Why:
    return explain(await call.service.store.why(job_id=call.path["id"]))


async def why_profile(call: Call) -> Why:
    return explain(await call.service.store.why(profile_id=call.path["id"]))


async def about_job(call: Call) -> Subject:
    (place,) = await call.service.permissions.places("why", {"job_id": call.path["id"]})
    return Subject(account=place.account, pool=place.pool)


async def about_profile(call: Call) -> Subject:
    (place,) = await call.service.permissions.places("why", {"profile_id": call.path["id"]})
    return Subject(account=place.account, pool=place.pool)


async def stats(call: Call) -> Stats:
    return await call.service.store.stats()


async def read_fleet(call: Call) -> Fleet:
    """The fleet in force. Its tag is the ETag."""
    fleet = Fleet(
        accounts={str(each.account_id): each for each in await _all(call, Account)},
        profiles={str(each.profile_id): each for each in await _all(call, Profile)},
        proxies={str(each.proxy_id): each for each in await _all(call, Proxy)},
        launchers={str(each.launcher_id): each for each in await _all(call, Launcher)},
        limits={each.pool: each for each in await _all(call, Limit)},
        schedules={str(each.schedule_id): each for each in await _all(call, Schedule)},
        profile_store=await fleet_profile_store(call.service.store),
    )
    call.headers["ETag"] = f'"{tag_of(fleet)}"'
    return fleet


async def _all(call: Call, kind: type[Any]) -> list[Any]:
    found: list[Any] = []
    after = None
    while True:
        page = await call.service.store.find(kind, after=after, limit=MAX_IN_PAGE)
        found += page.items
        after = page.after
        if after is None:
            return found


async def apply_fleet(call: Call) -> Changes:
    """Apply the fleet, or with `dry_run` return what would change."""
    dry, prune = call.query.get("dry_run") == "1", call.query.get("prune") == "1"
    seen: str | None = call.query.get("If-Match")
    changes = await call.service.store.apply(
        call.body, actor=call.actor, prune=prune, dry_run=dry, expected=None if seen is None else seen.strip('"')
    )
    return Changes(items=changes, applied=not dry)


def _fleet_of(data: object) -> Fleet:
    if not isinstance(data, Mapping):
        raise InputError("the fleet is not acceptable", [Problem("", "must be an object, as a fleet file is")])
    return parse_fleet(data)


def _fleet_schema() -> Mapping[str, Any]:
    return {name: value for name, value in fleet_schema().items() if name not in ("$schema", "$id")}


_TOKEN: Final = Record(
    [
        Field(
            name="name",
            kind=Text(f"1 to {MAX_NAME} printable characters", maximum=MAX_NAME),
            doc="what it is for",
            required=True,
        ),
        Field(name="scopes", kind=ListOf(Choice(Scope), len(Scope)), doc="what it allows", required=True),
        Field(name="accounts", kind=ListOf(ID, MAX_RESTRICTIONS), doc="only for these accounts; empty: all"),
        Field(name="pools", kind=ListOf(ID, MAX_RESTRICTIONS), doc="only for these pools; empty: all"),
        Field(
            name="expires_after_seconds",
            kind=Number(1, MAX_LIFETIME.total_seconds(), seconds=True),
            doc="lifetime; without it, valid until it is revoked",
            into="expires_after",
        ),
    ]
)


def _token_of(data: object) -> dict[str, Any]:
    problems = Problems()
    values = _TOKEN.read(data, "", problems)
    problems.raise_any("no token was created")
    return values


async def new_token(call: Call) -> TokenWithText:
    """Create a token; its text is in this answer alone."""
    expires: timedelta | None = call.body.get("expires_after")
    made = await create_token(
        call.service.store,
        call.body["name"],
        call.body["scopes"],
        actor=call.actor,
        accounts=call.body.get("accounts") or (),
        pools=call.body.get("pools") or (),
        expires_after=expires,
    )
    call.headers["Cache-Control"] = "no-store"
    return TokenWithText(created=made.token, text=made.text)


async def whoami(call: Call) -> ApiToken:
    if call.token is None:
        raise Forbidden("the call has no token")
    return call.token


_KEY: Final = Parameter(
    "Idempotency-Key",
    "the job's idempotency_key: sent again, the first job comes back",
    Text(f"1 to {MAX_KEY} printable characters", maximum=MAX_KEY),
    "header",
)
_TRACEPARENT: Final = Parameter(
    "traceparent",
    "W3C Trace Context: the trace that the jobs are part of, unless they name one; ignored if it is not valid",
    Text("text", maximum=MAX_KEY, minimum=0),
    "header",
)
_SWITCH: Final = Text("1 or 0", maximum=1, pattern="[01]")

ROUTES: Final = (
    Route(
        method="POST",
        path="/v1/jobs",
        summary="Submit one job, or a list of up to 1,000, all or none.",
        handler=submit,
        # Each job names its own account and pool: `submit` checks them.
        needs=Needs(Scope.SUBMIT, Reach.NOTHING),
        parameters=(_KEY, _TRACEPARENT),
        body=Body(parse_jobs, _jobs_schema),
        answers=SubmittedJobs,
        status=201,
        tag="jobs",
    ),
    Route(
        method="GET",
        path="/v1/jobs/{id}/why",
        summary="Why a job does not run, what happens next, what a person can do.",
        handler=why_job,
        needs=OPERATIONS["why"],
        about=about_job,
        answers=Why,
        tag="jobs",
    ),
    Route(
        method="GET",
        path="/v1/profiles/{id}/why",
        summary="Why a profile is not available, what happens next, what a person can do.",
        handler=why_profile,
        needs=OPERATIONS["why"],
        about=about_profile,
        answers=Why,
        tag="profiles",
    ),
    Route(
        method="GET",
        path="/v1/stats",
        summary="Current counts: jobs by state and reason, profiles, leases, webhooks.",
        handler=stats,
        needs=OPERATIONS["stats"],
        answers=Stats,
        tag="service",
    ),
    Route(
        method="GET",
        path="/v1/fleet",
        summary="The fleet in force.",
        handler=read_fleet,
        needs=Needs(Scope.READ, Reach.FLEET),
        answers=Fleet,
        payload=True,
        tag="fleet",
    ),
    Route(
        method="PUT",
        path="/v1/fleet",
        summary="Apply a fleet; with dry_run, only show the changes. Never touches runtime state.",
        handler=apply_fleet,
        needs=OPERATIONS["apply"],
        parameters=(
            Parameter("dry_run", "1: only show what would change", _SWITCH),
            Parameter("prune", "1: remove what the fleet does not name", _SWITCH),
            Parameter(
                "If-Match",
                "the ETag of the fleet as it was read: apply only if nobody changed it since",
                Text('an ETag, as "0a1b…"', maximum=64, pattern='"[0-9a-f]{32}"'),
                "header",
            ),
        ),
        body=Body(_fleet_of, _fleet_schema),
        answers=Changes,
        tag="fleet",
    ),
    Route(
        method="POST",
        path="/v1/tokens",
        summary="Create a token. Its text is in this answer and nowhere else.",
        handler=new_token,
        needs=OPERATIONS["create_token"],
        body=Body(_token_of, _TOKEN.schema),
        answers=TokenWithText,
        status=201,
        tag="tokens",
    ),
    Route(
        method="GET",
        path="/v1/whoami",
        summary="The token of this call, and what it allows.",
        handler=whoami,
        needs=Needs(Scope.READ, Reach.NOTHING),
        answers=ApiToken,
        tag="tokens",
    ),
)
