"""The live view of a run's browser, and a session that a person opens to work in a profile by hand."""

from datetime import timedelta
from typing import Final

from starlette.responses import RedirectResponse, Response

from leasekeeper.core.accounts import Account
from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.granting import purpose_of_visit
from leasekeeper.core.leases import Purpose, RunRecord
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.tokens import Needs, Reach, Scope, denial
from leasekeeper.errors import LeasekeeperError
from leasekeeper.runtime.session_host import SessionOrder
from leasekeeper.runtime.session_terms import SessionTerms
from leasekeeper.service.control import JOB_CHOICES, PROFILE_CHOICES, browser_of, find_browser
from leasekeeper.service.pages.actions import answer, read_decision, refused_text
from leasekeeper.service.pages.rendering import page
from leasekeeper.service.pages.visit import Visit
from leasekeeper.service.permissions import refuse
from leasekeeper.service.routes.deciding import MAX_NOTE
from leasekeeper.service.run_targets import not_open

IDLE: Final = timedelta(minutes=10)
LONGEST: Final = timedelta(hours=4)
_OPERATE: Final = Needs(Scope.OPERATE, Reach.TARGET)


async def view(visit: Visit) -> Response:
    """The page: a canvas, the tabs, who has control, and passing it on."""
    run = await visit.get(RunRecord, visit.path["run_id"])
    browser = find_browser(visit.service, run.run_id)
    control = browser.view() if browser is not None else None
    session = browser is not None and browser.session is not None
    return await page(
        visit,
        "live_view.html",
        title=f"Live view of {run.profile_id}",
        run=run,
        watchable=browser is not None,
        why_not=not_open(run).message if browser is None else "",
        control=control,
        is_session=session,
        job_id=browser.live.job_id if browser is not None and browser.live is not None else None,
        job_choices=[each for each in JOB_CHOICES if visit.may(Target.JOB, each)],
        profile_choices=[each for each in PROFILE_CHOICES if visit.may(Target.PROFILE, each)],
    )


async def take(visit: Visit) -> Response:
    """Take control, and go on in the live view."""
    return await _pass_on(visit, "you have control: no command of the task or agent reaches the browser any more")


async def hand_back(visit: Visit) -> Response:
    """Let the task go on."""
    return await _pass_on(visit, "the task has control again")


async def _pass_on(visit: Visit, done: str) -> Response:
    run_id = visit.path["run_id"]
    back = f"/ui/runs/{run_id}/live"
    form = await visit.form()
    note = form.get("note", "").strip()[:MAX_NOTE]
    try:
        browser = await browser_of(visit.service, run_id)
        if visit.request.url.path.endswith("/take"):
            now = await browser.take(visit.token, note)
        else:
            now = await browser.hand_back(visit.token, note, form.get("outcome", "").strip()[:128])
    except LeasekeeperError as error:
        return answer(visit, back, refused_text(error, f"run {run_id}"), good=False)
    if browser.away is not None:
        return answer(visit, f"/ui/runs/{run_id}", "answered: the task goes on at its next heartbeat")
    return answer(visit, f"/ui/runs/{now.run_id}/live", done)


async def release(visit: Visit) -> Response:
    """Close the browser that a person has, and decide about its job and its profile."""
    run_id = visit.path["run_id"]
    form = await visit.form()
    try:
        job = Action(form["job"]) if form.get("job") else None
        profile = Action(form["profile"]) if form.get("profile") else None
        browser = await browser_of(visit.service, run_id)
        note = form.get("note", "").strip()[:MAX_NOTE]
        end = await browser.release(visit.token, note, job=job, profile=profile)
    except ValueError:
        return answer(visit, f"/ui/runs/{run_id}/live", "nothing was done: unknown action", good=False)
    except LeasekeeperError as error:
        return answer(visit, f"/ui/runs/{run_id}/live", refused_text(error, f"run {run_id}"), good=False)
    said = f"released: profile {end.profile_id} is {end.profile_state}" if end.profile_state else "the lease was lost"
    return answer(visit, f"/ui/runs/{end.run_id}", said, good=end.reason is None)


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
    form = await visit.form()
    about = {"target": Target.PROFILE.value, "action": Action.NOTE.value, "note": f"opened: {form.get('note', '')}"}
    try:
        note = read_decision(about, visit.actor, profile_id)
        session, _ = await visit.service.sessions.open(order)
        if form.get("note", "").strip() and visit.may(note.target, note.action):
            await visit.decide(note)
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
        f"the session ended: {end.reason}: {end.message}"
        if end and end.reason
        else "the session ended, its browser is closed"
    )
    return answer(visit, back, said, good=end is None or end.reason is None)


async def _pool_of(visit: Visit, run: RunRecord) -> str | None:
    profile = await visit.get_if_there(Profile, run.profile_id)
    return profile.pool if profile else None
