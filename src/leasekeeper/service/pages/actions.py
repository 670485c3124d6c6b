"""Decisions that people send from a page: about one record, or about all that match a filter.

The note and the version that the person saw go to the store with the decision; what it refuses is shown on the page.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.responses import RedirectResponse, Response

from leasekeeper.core.decisions import JOB_ACTIONS, Action, Decision, Review, Target
from leasekeeper.core.ids import is_number
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.errors import AccessDenied, InputError, LeasekeeperError, Problem, VersionConflict
from leasekeeper.service.pages.filter_language import read_filter
from leasekeeper.service.pages.signing_in import safe_next
from leasekeeper.service.pages.visit import FLASH, Flash, Visit
from leasekeeper.service.routes.deciding import MAX_NOTE

# This many are done before a proxy in between times out, usually after a minute.
MAX_AT_ONCE: Final = 5_000
MAX_TOGETHER: Final = 32  # a store combines the commits of decisions that come together
# What the page says after the action.
DONE: Final = {
    Action.CLEAR: "cleared",
    Action.QUARANTINE: "quarantined",
    Action.REVIEW: "sent to review",
    Action.DISABLE: "disabled",
    Action.ENABLE: "enabled",
    Action.APPROVE: "approved",
    Action.REQUEUE: "requeued",
    Action.CANCEL: "cancelled",
    Action.RETRY: "retried",
    Action.DROP: "dropped",
    Action.PRIORITIZE: "prioritized",
    Action.MOVE: "moved",
    Action.RESTORE: "restored",
    Action.NOTE: "noted",
    Action.ANSWER: "answered",
    Action.PAUSE: "paused",
    Action.RESUME: "resumed",
    Action.REVOKE: "revoked",
    Action.REPLAY: "sent again",
    Action.RUN: "started",
    Action.PING: "pinged",
    Action.REMOVE: "removed",
    Action.BAN: "marked as banned",
    Action.SUSPECT: "marked as suspected",
    Action.UNBAN: "marked as not banned",
    Action.NOTE: "noted",
}
# Dead letters that nobody has dropped.
DEAD: Final = {"state": "dead", "dropped": "0"}
# The note of a decision that was made by one click or key.
UNSAID: Final = "decided in the dashboard"


def answer(visit: Visit, back: str | None, text: str, *, good: bool = True) -> Response:
    """Redirect back to the page, with the outcome as a message."""
    root = visit.request.scope.get("root_path", "")
    response = RedirectResponse(root + safe_next(back), 303)
    response.set_cookie(
        FLASH, Flash(text, good).write(), max_age=60, path=f"{root}/ui", httponly=True, samesite="strict"
    )
    return response


def refused_text(error: LeasekeeperError, what: str) -> str:
    """Why nothing was decided, for the person who tried."""
    if isinstance(error, VersionConflict):
        return f"{what} was not changed: another person decided about it since you opened this page. {error.message}"
    if isinstance(error, InputError) and error.problems:
        return "; ".join(f"{each.where} {each.message}" for each in error.problems)
    return error.message


def read_decision(form: dict[str, str], actor: str, target_id: str | None = None) -> Decision:
    """The decision in a form. Raises InputError."""
    try:
        target, action = Target(form.get("target", "")), Action(form.get("action", ""))
    except ValueError:
        raise InputError("nothing was decided", [Problem("action", "is not an action of this page")]) from None
    note = form.get("note", "").strip() or UNSAID
    if len(note.encode()) > MAX_NOTE:
        raise InputError("nothing was decided", [Problem("note", f"must be at most {MAX_NOTE} bytes")])
    version = form.get("version", "")
    return Decision(
        target=target,
        id=target_id or form.get("target_id", ""),
        action=action,
        note=note,
        actor=actor,
        version=int(version) if is_number(version) and version else None,
        to=form.get("to", "").strip() or None,
    )


async def decide(visit: Visit) -> Response:
    """One decision about one record."""
    form = await visit.form()
    if "choice" in form:  # in a form with several buttons, the button has all the fields
        form |= dict(zip(("target", "target_id", "action", "version"), form["choice"].split("|"), strict=False))
    what = f"{form.get('target', 'record')} {form.get('target_id', '')}"
    try:
        decision = read_decision(form, visit.actor)
        decided = await visit.decide(decision)
    except LeasekeeperError as error:
        return answer(visit, form.get("back"), refused_text(error, what), good=False)
    now = f" It is {decided.state.replace('_', ' ')} now." if decided.state else ""
    return answer(visit, form.get("then") or form.get("back"), f"{what} was {DONE[decision.action]}.{now}")


def group_of(job: Job) -> tuple[str, str]:
    """What dead jobs are grouped by: why they stopped, and their task."""
    return job.stop_reason or "unknown", job.task


@dataclass(frozen=True, slots=True)
class Selected:
    """The records that a decision about many is about."""

    target: Target
    ids: tuple[tuple[str, int | None], ...]


def subject_of(review: Review) -> str:
    """The id of what a review is about: of a profile, a job or a proxy."""
    match review.target:
        case Target.JOB:
            return str(review.job_id)
        case Target.PROXY:
            return str(review.proxy_id)
        case _:
            return str(review.profile_id)


async def select(
    visit: Visit, of: str, text: str, action: Action, *, target: str = "", group: tuple[str, str] | None = None
) -> Selected:
    """The records that match and that this can be decided about. Raises InputError if the filter cannot be read.

    `target` is of reviews: what they are about. `group` is of dead jobs: the reason that they stopped for, their task.
    """
    if of == "reviews":
        try:
            about = Target(target)
        except ValueError:
            raise InputError("nothing was decided", [Problem("target", "is not an action of this page")]) from None
        where = {"open": "1", "reason": text, "target": about.value}
        found = dict.fromkeys(map(subject_of, await visit.find_all(Review, where, maximum=MAX_AT_ONCE)))
        return Selected(about, tuple((each, None) for each in found))
    asked = read_filter(Job, text)
    if asked.problems:
        raise InputError("nothing was decided", [Problem("filter", each) for each in asked.problems])
    where = {**asked.where, **(DEAD if of == "dead" else {})}
    states = [state.value for state in JobState if state in JOB_ACTIONS.get(action, ())]
    matching: list[Job] = []
    for state in [each for each in states if where.get("state", each) == each]:
        maximum = MAX_AT_ONCE - len(matching)
        matching += await visit.find_all(Job, {**where, "state": state}, maximum=maximum) if maximum else []
    if of == "dead":
        matching = [job for job in matching if group_of(job) == group]
    return Selected(Target.JOB, tuple((job.job_id, job.version) for job in matching))


async def decide_all(visit: Visit) -> Response:
    """One decision about all that match. Nothing is done if their number is not the one that the person saw."""
    form = await visit.form()
    back = form.get("back")
    try:
        action = Action(form.get("action", ""))
        group = (form.get("reason", ""), form.get("task", ""))
        of, text, target = (form.get(name, "") for name in ("of", "q", "target"))
        selected = await select(visit, of, text, action, target=target, group=group)
        wanted = {**form, "target": selected.target.value}
        if str(len(selected.ids)) != form.get("count", ""):
            now = f"{len(selected.ids):,} match now, not {form.get('count')}"
            return answer(visit, back, f"nothing was done: {now}. Check the list again, then decide.", good=False)
        done, refused = await _decide_each(visit, wanted, selected)
    except ValueError:
        return answer(visit, back, "nothing was done: unknown action", good=False)
    except LeasekeeperError as error:
        return answer(visit, back, refused_text(error, "nothing"), good=False)
    text = f"{done:,} of {len(selected.ids):,} {DONE[action]}."
    if refused:
        text += f" {len(refused):,} refused, the first because: {refused[0]}"
    return answer(visit, back, text, good=not refused)


async def _decide_each(visit: Visit, form: dict[str, str], selected: Selected) -> tuple[int, list[str]]:
    """Decide about each, one commit each: what was decided stays if a later one is refused."""
    room = asyncio.Semaphore(MAX_TOGETHER)

    async def one(record_id: str, version: int | None) -> str:
        """The reason if it was refused, else empty."""
        seen = {**form, "version": "" if version is None else str(version)}
        async with room:
            try:
                await visit.decide(read_decision(seen, visit.actor, record_id))
            except AccessDenied:
                raise
            except LeasekeeperError as error:
                return refused_text(error, record_id)
        return ""

    refused = [each for each in await asyncio.gather(*(one(*each) for each in selected.ids)) if each]
    return len(selected.ids) - len(refused), refused
