"""`leasekeeper reviews`: the human inbox; list, show, decide.

A decision is made on the version of the record that the open review was about: if another person decided in the
meantime, this one is refused.
"""

from typing import TYPE_CHECKING, Final

import click

from leasekeeper.cli.completing import ids
from leasekeeper.cli.connection import with_store
from leasekeeper.cli.decisions import answer_decided, decide_each, put_through
from leasekeeper.cli.notes import print_notes, read_notes
from leasekeeper.cli.options import actor, filters, given, note, noun, output, paging
from leasekeeper.cli.output import View, answer_page, answer_records
from leasekeeper.cli.record_ids import whole_id
from leasekeeper.cli.selection import REVIEWS, Selection, chosen_ids, selecting
from leasekeeper.cli.table import SHORT_IDS, Column, Screen
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.decisions import ACTIONS, JOB_ACTIONS, PROFILE_ACTIONS, Action, Decision, Review, Target
from leasekeeper.core.jobs import Job
from leasekeeper.core.profiles import Lane
from leasekeeper.errors import Conflict, InputError

if TYPE_CHECKING:
    from leasekeeper.ports import Decided, Store

DECISIONS: Final = (
    Action.CLEAR,
    Action.QUARANTINE,
    Action.REVIEW,
    Action.DISABLE,
    Action.REQUEUE,
    Action.CANCEL,
    Action.APPROVE,
    Action.RETRY,
)

VIEW = View(
    kind=Review,
    plural="reviews",
    columns=(
        Column[Review]("REVIEW", "review_id", id=True),
        Column[Review]("OF", "target"),
        Column[Review]("PROFILE", "profile_id", spare=1),
        Column[Review]("JOB", "job_id", spare=8, least=SHORT_IDS[0], id=True),
        Column[Review]("OPENED", "opened_at", spare=5),
        Column[Review]("SUMMARY", "summary", spare=3, least=30),
        Column[Review]("DECIDED", "decided_at", spare=4),
        Column[Review]("DECISION", "decision", spare=2),
        Column[Review]("BY", "actor", spare=6),
        Column[Review]("NOTE", "note", spare=7, least=20),
    ),
    empty="nothing waits for a person",
)

command = noun("reviews", "Reviews: profiles and jobs that wait for a person.")


def record_id(review: Review) -> str:
    """What the review is about."""
    if review.target is Target.PROXY and review.proxy_id:
        return review.proxy_id
    return review.job_id if review.target is Target.JOB and review.job_id else review.profile_id


@command.command("list")
@filters(Review, reason="reason", account="account_id", pool="pool", profile="profile_id")
@click.option("--all", "with_decided", is_flag=True, help="Those that were decided, too.")
@paging
@output
def list_reviews(
    store: str | None, limit: int, after: str | None, as_json: bool, with_decided: bool, **where: str | None
) -> None:
    """List what waits for a person."""
    always = {} if with_decided else REVIEWS.always
    answer_page(VIEW, given(where), url=store, limit=limit, after=after, as_json=as_json, always=always)


@command.command("show")
@click.argument("review_ids", metavar="ID...", nargs=-1, required=True, shell_complete=ids("review"))
@output
def show_review(review_ids: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Show reviews in full, and what can be decided about them."""
    answer_records(Review, review_ids, url=store, as_json=as_json, after_each=lambda review: _print_open(review, store))


def _print_open(review: Review, store: str | None) -> None:
    screen = Screen.now()
    notes, now = with_store(store, lambda opened: read_notes(opened, review.profile_id))
    print_notes(notes, now, screen)
    if review.decided_at is not None:
        return
    click.echo(screen.title("what you can do"))
    if review.run_id is not None:
        click.echo(f"  leasekeeper runs show {review.run_id}")
    for action in with_store(store, lambda opened: _allowed(opened, review)):
        click.echo(f"  leasekeeper reviews decide {review.review_id} {action} --note …")


@command.command("decide")
@selecting(REVIEWS)
@click.argument("action", type=click.Choice([str(action) for action in DECISIONS]))
@note
@actor
@output
def decide_review(selection: Selection, action: str, note: str, by: str, store: str | None, as_json: bool) -> None:
    """Decide reviews: those named, or with --all those that match the filters.

    Of a profile: clear, quarantine, review or disable. Of a job: requeue, cancel or approve. Of a proxy: retry, which
    has it checked at once; its review is closed when the check succeeds.
    """
    wanted = Action(action)
    if selection.one is not None:
        answer_decided(
            *with_store(store, lambda opened: decide_in(opened, selection.ids[0], wanted, note, by)), as_json=as_json
        )
        return
    about = next((target for target in (Target.PROFILE, Target.JOB, Target.PROXY) if wanted in ACTIONS[target]), None)
    ids = chosen_ids(
        selection,
        Review,
        lambda review: review.target is about,
        url=store,
        verb=action,
        what=f"{about}s that wait for a person",
        as_json=as_json,
    )
    decide_each(
        ids,
        lambda opened, review_id: decide_in(opened, review_id, wanted, note, by),
        store,
        what="reviews",
        as_json=as_json,
    )


async def decide_in(
    store: "Store", review_id: str, action: Action, note: str, actor: str
) -> "tuple[Decision, Decided]":
    """Decide about the review's record as it was while the review was open."""
    review = await store.get(Review, await whole_id(store, Review, review_id))
    review_id = review.review_id
    _check_open(review)
    allowed = await _allowed(store, review)
    if action not in allowed:
        raise InputError(
            f"review {review.review_id} is about {review.target} {record_id(review)}: cannot {action} it; "
            f"one can {', '.join(allowed)}"
        )
    target_id = record_id(review)
    version = None
    if review.target is Target.JOB:
        version = (await store.get(Job, target_id)).version
    elif review.target is Target.PROFILE:
        version = (await store.get(Lane, target_id)).version
    # Check again after the version was read: if the review is still open, the version is of the state that it is about.
    _check_open(await store.get(Review, review_id))
    decision = Decision(target=review.target, id=target_id, action=action, note=note, actor=actor, version=version)
    return decision, await put_through(store, decision)


async def _allowed(store: "Store", review: Review) -> list[Action]:
    """What can be decided about the record of a review as it is now."""
    if review.target is Target.JOB:
        job = await store.get(Job, record_id(review))
        return [action for action in DECISIONS if job.state in JOB_ACTIONS.get(action, ())]
    if review.target is Target.PROXY:
        return list(ACTIONS[Target.PROXY])
    lane = await store.get(Lane, record_id(review))
    return [action for action in DECISIONS if lane.state in PROFILE_ACTIONS.get(action, ())]


def _check_open(review: Review) -> None:
    if review.decided_at is not None:
        raise Conflict(
            f"review {review.review_id} was decided already: {review.decision or 'settled'} "
            f"by {review.actor or 'Leasekeeper'}{f' ({review.note})' if review.note else ''}",
            cause=ConflictReason.REVIEW_DECIDED,
        )
