"""Decisions of people over HTTP: one route for each in `core.tokens.DECISIONS`, with a note, version-checked."""

from functools import partial
from typing import Any, Final

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.tokens import DECISIONS, Needs
from leasekeeper.errors import InputError, Problem
from leasekeeper.ports import Decided
from leasekeeper.service.routing import Body, Call, Parameter, Route, Subject
from leasekeeper.wire.kinds import Integer, Problems, Text, Time
from leasekeeper.wire.records import Field, Record

MAX_NOTE: Final = 2_000
MAX_MACHINE: Final = 128
MAX_VERSION: Final = 2**53
_FIELDS: Final = (
    Field(
        name="note",
        kind=Text(f"1 to {MAX_NOTE} bytes of text", maximum=MAX_NOTE, lines=True),
        doc="why, for those who read it later",
        required=True,
    ),
    Field(
        name="version",
        kind=Integer(1, MAX_VERSION),
        doc="decide only if the record still has this version; the header If-Match says the same",
    ),
    Field(
        name="to",
        kind=Text("a name or a number", maximum=MAX_MACHINE),
        doc="of a move: the machine that has the profile's directory now; of prioritize: the job's new priority; "
        "of restore: the token of the snapshot, absent for the last that is known to be good; of answer: the outcome",
    ),
)
_BODY: Final = Record([*_FIELDS])
_PAUSE: Final = Record(
    [*_FIELDS, Field(name="until", kind=Time(), doc="when the pause ends by itself, by the store's clock")]
)
_IF_MATCH: Final = Parameter(
    "If-Match",
    "the ETag of the record as it was read: decide only if it is unchanged",
    Text('an ETag, as "7"', maximum=32, pattern='"[0-9]{1,16}"'),
    "header",
)


def _read(record: Record, data: object) -> dict[str, Any]:
    problems = Problems()
    values = record.read(data, "", problems)
    if not str(values.get("note") or "x").strip():
        problems.add("note", "say why: an unexplained decision is not accepted")
    problems.raise_any("nothing was decided")
    return values


async def decide(target: Target, action: Action, call: Call) -> Decided:
    """Pass the decision to the store."""
    version: int | None = call.body.get("version")
    tag: str | None = call.query.get("If-Match")
    if tag is not None:
        seen = int(tag.strip('"'))
        if version is not None and version != seen:
            raise InputError("nothing was decided", [Problem("version", "differs from If-Match: give one of them")])
        version = seen
    decision = Decision(
        target=target,
        id=call.path["id"],
        action=action,
        note=call.body["note"],
        actor=call.actor,
        version=version,
        to=call.body.get("to"),
        until=call.body.get("until"),
    )
    return await call.service.store.decide(decision)


async def about(target: Target, action: Action, call: Call) -> Subject:
    """What the decision is about; the record is only read for a restricted token."""
    if call.token is None or not (call.token.accounts or call.token.pools):
        return Subject()
    decision = Decision(target=target, id=call.path["id"], action=action, note="", actor="")
    (place,) = await call.service.permissions.places("decide", {"decision": decision})
    return Subject(account=place.account, pool=place.pool)


def _noun(target: Target) -> str:
    """The path of a kind of record."""
    return "proxies" if target is Target.PROXY else f"{target}s"


def _one(target: Target) -> str:
    return f"an {target}" if target[0] in "ae" else f"a {target}"


def _route(target: Target, action: Action, needs: Needs) -> Route:
    record = _PAUSE if (target, action) == (Target.PAUSE, Action.PAUSE) else _BODY
    return Route(
        method="POST",
        path=f"/v1/{_noun(target)}/{{id}}/{action}",
        summary=f"Decide about {_one(target)}: {action}.",
        handler=partial(decide, target, action),
        needs=needs,
        about=partial(about, target, action),
        parameters=(_IF_MATCH,),
        body=Body(partial(_read, record), record.schema),
        answers=Decided,
        tag=_noun(target),
    )


ROUTES: Final = tuple(_route(target, action, needs) for (target, action), needs in DECISIONS.items())
