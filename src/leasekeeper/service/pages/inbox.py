"""The review inbox: what waits for a person, oldest first, with all facts of one item on one screen."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response

from leasekeeper.core.decisions import Review, Target
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import Lane
from leasekeeper.core.why_answer import Possible, Why
from leasekeeper.errors import NotFound
from leasekeeper.evidence.files import Artifact
from leasekeeper.service.control import asking_away, find_browser
from leasekeeper.service.pages.actions import MAX_AT_ONCE, subject_of
from leasekeeper.service.pages.rendering import page
from leasekeeper.service.pages.runs import commands_of, images_of
from leasekeeper.service.pages.visit import Visit
from leasekeeper.wording.decisions import consequence
from leasekeeper.wording.why import WhyText, why_text

SHOWN: Final = 200
# Keys of the decisions; j and k move, c clears, q quarantines, d disables.
KEYS: Final = {"clear": "c", "quarantine": "q", "disable": "d", "requeue": "r", "approve": "a", "cancel": "x"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One decision: what it is about, at which version, its key, and what follows from it."""

    possible: Possible
    version: int | None
    key: str
    then: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything about one item."""

    review: Review
    why: Why
    text: WhyText
    run: RunRecord | None
    images: Sequence[Artifact]
    commands: Sequence[tuple[object, str, str]]
    choices: Sequence[Choice]


async def view(visit: Visit) -> Response:
    reason = visit.query.get("reason", "")
    opened = list(reversed(await visit.find_all(Review, {"open": "1"}, maximum=MAX_AT_ONCE)))
    causes = Counter(review.reason for review in opened)
    of_targets = Counter(
        (reason, target) for reason, target, _ in {(each.reason, each.target, subject_of(each)) for each in opened}
    )
    listed = [review for review in opened if not reason or review.reason == reason]
    gone = await _gone(visit, opened)
    chosen = _chosen(listed, visit.query.get("review")) if gone is None else None
    facts = await _facts(visit, chosen) if chosen is not None else None
    place = listed.index(chosen) if chosen is not None else -1
    watchable = _watchable(visit, chosen)
    return await page(
        visit,
        "reviews.html",
        title="Reviews",
        listed=listed[: max(SHOWN, place + 20)],
        total=len(listed),
        causes=causes.most_common(),
        reason=reason,
        facts=facts,
        gone=gone,
        same={target: of_targets[chosen.reason, target] for target in Target} if chosen is not None else {},
        watchable=watchable,
        answerable=chosen.run_id if chosen is not None and not watchable and await _asks(visit, chosen) else None,
        before=listed[place - 1] if place > 0 else None,
        after=listed[place + 1] if place + 1 < len(listed) else None,
    )


def _watchable(visit: Visit, review: Review | None) -> str | None:
    """The run whose browser is open here, so that a person can watch it and help."""
    if review is None or review.run_id is None:
        return None
    return review.run_id if find_browser(visit.service, review.run_id) is not None else None


async def _asks(visit: Visit, review: Review) -> bool:
    """Whether its run waits for a person on a worker that is not connected here: it can be answered."""
    run = await visit.get_if_there(RunRecord, review.run_id)
    return run is not None and await asking_away(visit.service, run) is not None


async def _gone(visit: Visit, opened: Sequence[Review]) -> Review | None:
    """The review that the address names, if it is no longer open: the page must not show another one in its place."""
    review_id = visit.query.get("review")
    if any(str(each.review_id) == review_id for each in opened):
        return None
    found = await visit.get_if_there(Review, review_id)
    return found if found is not None and found.decided_at is not None else None


def _chosen(listed: Sequence[Review], review_id: str | None) -> Review | None:
    """The one that the address names; if it names none of these, the oldest."""
    by_id = {str(review.review_id): review for review in listed}
    return by_id.get(review_id or "") or (listed[0] if listed else None)


async def _facts(visit: Visit, review: Review) -> Facts | None:
    about_job = review.target is Target.JOB and review.job_id is not None
    try:
        why = await (
            visit.why(job_id=str(review.job_id)) if about_job else visit.why(profile_id=str(review.profile_id))
        )
    except NotFound:
        return None
    run_id = review.run_id or (why.evidence[0] if why.evidence else None)
    lane, job, run = await asyncio.gather(
        visit.get_if_there(Lane, review.profile_id),
        visit.get_if_there(Job, review.job_id),
        visit.get_if_there(RunRecord, run_id),
    )
    versions = {
        (Target.PROFILE, str(review.profile_id)): lane.version if lane else None,
        (Target.JOB, str(review.job_id)): job.version if job else None,
    }
    choices = [
        Choice(
            possible,
            versions.get((possible.target, possible.id)),
            KEYS.get(possible.action, "") if possible.target is review.target else "",
            consequence(possible, why),
        )
        for possible in why.possible
        if visit.may(possible.target, possible.action)
    ]
    choices.sort(key=lambda choice: choice.possible.target is not review.target)
    return Facts(
        review=review,
        why=why,
        text=why_text(why),
        run=run,
        images=images_of(run) if run else (),
        commands=commands_of(run.evidence)[-8:] if run else (),
        choices=choices,
    )
