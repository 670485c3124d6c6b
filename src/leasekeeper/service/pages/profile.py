"""One profile: its state and why, who holds it, its history, last runs, waiting jobs, conflicts, environment."""

import asyncio
from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from leasekeeper.core.accounts import Account, Proxy
from leasekeeper.core.decisions import BAN_ACTIONS, PROFILE_ACTIONS, Action
from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.notes import Note, NoteAbout
from leasekeeper.core.profiles import Lane, Profile, ProfileState
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.service.pages.rendering import field_text, page
from leasekeeper.service.pages.runs import images_of
from leasekeeper.service.pages.visit import Visit
from leasekeeper.wording import size_text
from leasekeeper.wording.conflicts import advice
from leasekeeper.wording.why import why_text

HISTORY: Final = 200
SHOWN_HISTORY: Final = 40
LAST_RUNS: Final = 8
WAITING: Final = 10
CONFLICTS: Final = 5
NOTES: Final = 50
SNAPSHOTS: Final = 10
OPEN: Final = ("running", "queued", "blocked", "scheduled", "review")


async def view(visit: Visit) -> Response:
    profile_id = visit.path["id"]
    of_it = {"profile_id": profile_id}
    profile, lane, why = await asyncio.gather(
        visit.get(Profile, profile_id), visit.get(Lane, profile_id), visit.why(profile_id=profile_id)
    )
    account, proxy = await asyncio.gather(
        visit.get_if_there(Account, profile.account_id), visit.get_if_there(Proxy, profile.proxy_id)
    )
    leases, runs, events, conflicts = await asyncio.gather(
        visit.find(Lease, {**of_it, "live": "1"}, limit=10),
        visit.find(RunRecord, of_it, limit=LAST_RUNS),
        visit.find(Event, of_it, limit=HISTORY),
        visit.find(Event, {**of_it, "type": EventType.PROFILE_LOCK_CONFLICT.value}, limit=CONFLICTS),
    )
    notes, account_notes = await asyncio.gather(
        visit.find_if_allowed(Note, {**of_it, "about": NoteAbout.PROFILE.value}, limit=NOTES),
        visit.find_if_allowed(Note, {"account_id": profile.account_id, "about": NoteAbout.ACCOUNT.value}, limit=NOTES),
    )
    snapshots = await visit.find(Snapshot, {**of_it, "discarded": "0"}, limit=SNAPSHOTS)
    jobs = await asyncio.gather(*(visit.find(Job, {**of_it, "state": state}, limit=WAITING) for state in OPEN))
    return await page(
        visit,
        "profile.html",
        title=profile_id,
        profile=profile,
        lane=lane,
        why=why,
        text=why_text(why),
        account=account,
        proxy=proxy,
        leases=leases.items,
        runs=[(run, images_of(run)) for run in runs.items],
        environment=environment(profile, proxy, runs.items),
        history=[event for event in events.items if event.profile_state is not None][:SHOWN_HISTORY],
        conflicts=conflicts.items,
        notes=sorted((*notes, *account_notes), key=lambda note: note.written_at, reverse=True),
        snapshots=snapshots.items,
        size_text=size_text,
        advice=advice,
        jobs=[job for found in jobs for job in found.items],
        actions=_actions(lane),
        bans=[(action.value, status.value) for action, status in BAN_ACTIONS.items()],
        field_text=field_text,
    )


def environment(
    profile: Profile, proxy: Proxy | None, runs: Sequence[RunRecord]
) -> list[tuple[str, str, str, RunRecord | None]]:
    """Name, the declared or expected value, the value that the last run with a check found, and that run."""
    declared = {
        "language": profile.language or "",
        "timezone": profile.timezone or "",
        "proxy_region": (proxy.region or "") if proxy else "",
    }
    looked = next((run for run in runs if run.actual), None)
    expected = {**(looked.expected if looked else {}), **{name: value for name, value in declared.items() if value}}
    actual = looked.actual if looked else {}
    names = dict.fromkeys((*declared, *expected, *actual))
    found = [(name, str(expected.get(name, "")), str(actual.get(name, "")), looked) for name in names]
    return [row for row in found if row[1] or row[2]]


def _actions(lane: Lane) -> list[str]:
    """What the table of decisions has for the state that the profile is in, or will be in when its lease ends."""
    leased = lane.state is ProfileState.LEASED
    heading = (lane.drain or ProfileState.AVAILABLE) if leased else lane.state
    found = [action.value for action, moves in PROFILE_ACTIONS.items() if heading in moves]
    return [*found, Action.RESTORE.value] if lane.snapshot is not None and not leased else found
