"""The live view of a run's browser, and a session that a person opens to work in a profile by hand."""

from datetime import timedelta
from typing import Final

from starlette.responses import RedirectResponse, Response

from leasekeeper.core.accounts import Account
from leasekeeper.core.granting import purpose_of_visit
from leasekeeper.core.leases import Purpose, RunRecord
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.tokens import Needs, Reach, Scope, denial
from leasekeeper.errors import LeasekeeperError
from leasekeeper.runtime.session_host import SessionOrder
from leasekeeper.runtime.session_run import SessionTerms
from leasekeeper.service.live_socket import can_be_watched
from leasekeeper.service.pages.actions import answer, refused_text
from leasekeeper.service.pages.rendering import page
from leasekeeper.service.pages.visit import Visit
from leasekeeper.service.permissions import refuse

IDLE: Final = timedelta(minutes=10)
LONGEST: Final = timedelta(hours=4)
_OPERATE: Final = Needs(Scope.OPERATE, Reach.TARGET)


async def view(visit: Visit) -> Response:
    """The page: a canvas, the tabs, who has control."""
    run = await visit.get(RunRecord, visit.path["run_id"])
    session = visit.service.sessions.get(run.run_id)
    return await page(
        visit,
        "live_view.html",
        title=f"Live view of {run.profile_id}",
        run=run,
        watchable=can_be_watched(visit.service, run),
        is_session=session is not None and not session.over,
    )


async def open_session(visit: Visit) -> Response:
    """Lease the profile, open its browser, and show it to the person who asked."""
    profile_id = visit.path["id"]
    profile, lane = await visit.get(Profile, profile_id), await visit.get(Lane, profile_id)
    refuse(denial(visit.token, _OPERATE, account=profile.account_id, pool=profile.pool))
    account = await visit.get(Account, profile.account_id)
    visited_as = purpose_of_visit(lane.state, paused=account.paused)
    order = SessionOrder(
        owner=visit.token.token_id,
        profile_id=profile_id,
        purpose=Purpose.INSPECT if visited_as is Purpose.INSPECT else Purpose.SESSION,
        terms=SessionTerms(idle_timeout=IDLE, max_duration=LONGEST, headless=True),
    )
    try:
        session, _ = await visit.service.sessions.open(order)
    except LeasekeeperError as error:
        return answer(visit, f"/ui/profiles/{profile_id}", refused_text(error, f"profile {profile_id}"), good=False)
    root = visit.request.scope.get("root_path", "")
    return RedirectResponse(f"{root}/ui/runs/{session.session_id}/live", 303)


async def end_session(visit: Visit) -> Response:
    """Close the session's browser with proof, and release its profile."""
    run = await visit.get(RunRecord, visit.path["run_id"])
    refuse(denial(visit.token, _OPERATE, account=run.account_id, pool=await _pool_of(visit, run)))
    back = f"/ui/runs/{run.run_id}"
    session = visit.service.sessions.get(run.run_id)
    if session is None:
        return answer(visit, back, "this server runs no session of that id", good=False)
    session.run.release(message=f"ended in the live view by {visit.actor}")
    end = await session.run.ended()
    said = (
        f"the session ended: {end.reason}: {end.message}" if end.reason else "the session ended, its browser is closed"
    )
    return answer(visit, back, said, good=end.reason is None)


async def _pool_of(visit: Visit, run: RunRecord) -> str | None:
    profile = await visit.get_if_there(Profile, run.profile_id)
    return profile.pool if profile else None
