"""Take control of a running browser, hand it back, release it: for people with the right to operate."""

from enum import StrEnum
from typing import Any, Final

from leasekeeper.core.decisions import Action
from leasekeeper.core.tokens import ApiToken, Needs, Scope
from leasekeeper.errors import Forbidden, NotFound
from leasekeeper.service.control import Browser, ControlView, Released, browser_of, target_of
from leasekeeper.service.routing import Body, Call, Route, Subject
from leasekeeper.wire.kinds import Choice, Problems, Text
from leasekeeper.wire.records import Field, Record

MAX_NOTE: Final = 2_000


class AfterJob(StrEnum):
    """What becomes of the job whose browser is released."""

    REQUEUE = "requeue"
    CANCEL = "cancel"


class AfterProfile(StrEnum):
    """The state of the profile, instead of available."""

    REVIEW = "review"
    QUARANTINE = "quarantine"
    DISABLE = "disable"


def _text(name: str, doc: str, maximum: int = MAX_NOTE) -> Field:
    return Field(name=name, kind=Text(f"1 to {maximum} bytes of text", maximum=maximum, lines=True), doc=doc)


_TAKE: Final = Record([_text("note", "why, for those who read it later")])
_BACK: Final = Record([_text("note", "for the task, and for those who read it later"), _text("outcome", "a word", 128)])
_RELEASE: Final = Record(
    [
        _text("note", "what you did"),
        Field(name="job", kind=Choice(AfterJob), doc="what becomes of its job; in review if left out"),
        Field(name="profile", kind=Choice(AfterProfile), doc="the profile's state; available if left out"),
    ]
)


def _body(record: Record) -> Body:
    def read(data: object) -> dict[str, Any]:
        problems = Problems()
        values = record.read(data, "", problems)
        problems.raise_any("nothing was done")
        return values

    return Body(read, record.schema, required=False)


async def about(call: Call) -> Subject:
    """A browser is about its profile's account and pool. A missing record has none."""
    try:
        found = await target_of(call.service, call.path["id"])
    except NotFound:
        return Subject()
    if isinstance(found, Browser):
        return Subject(account=found.lease.account_id, pool=found.lease.pool, record=found)
    place = await call.service.permissions.place(found)
    return Subject(account=place.account, pool=place.pool)


async def _of(call: Call) -> tuple[Browser, dict[str, Any], ApiToken]:
    if call.token is None:
        raise Forbidden("the call has no token")
    found: Browser = call.record or await browser_of(call.service, call.path["id"])
    return found, call.body or {}, call.token


async def show(call: Call) -> ControlView:
    browser, _, _ = await _of(call)
    return browser.view()


async def take(call: Call) -> ControlView:
    """Answers once the person has control: no command of the task or agent reaches the browser any more."""
    browser, body, token = await _of(call)
    return await browser.take(token, body.get("note") or "")


async def hand_back(call: Call) -> ControlView:
    browser, body, token = await _of(call)
    return await browser.hand_back(token, body.get("note") or "", body.get("outcome") or "")


async def release(call: Call) -> Released:
    """Answers once the browser is closed and its run settled."""
    browser, body, token = await _of(call)
    job, profile = (Action(body[name].value) if body.get(name) else None for name in ("job", "profile"))
    return await browser.release(token, body.get("note") or "", job=job, profile=profile)


def _route(path: str, summary: str, handler: Any, record: Record, answers: type = ControlView) -> Route:
    return Route(
        method="POST",
        path=f"/v1/runs/{{id}}/{path}",
        summary=summary,
        handler=handler,
        needs=Needs(Scope.OPERATE),
        about=about,
        body=_body(record),
        answers=answers,
        tag="runs",
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="/v1/runs/{id}/control",
        summary="Who has control of a run's browser. `id` is a run, or the profile or job that it is of.",
        handler=show,
        needs=Needs(Scope.READ),
        about=about,
        answers=ControlView,
        tag="runs",
    ),
    _route("take", "Take control of a run's browser, which stays open, under a lease of your own.", take, _TAKE),
    _route("hand-back", "Hand a browser back to its task, or only answer one that asks.", hand_back, _BACK),
    _route(
        "release",
        "Close a browser that was taken, and decide about its job and profile.",
        release,
        _RELEASE,
        Released,
    ),
)
