"""Settings: workers, limits, tokens, webhook endpoints with what was sent to them, and what doctor says.

Parts that the token may not see are left out. The secret of a new token or endpoint is shown once, in the answer to its
form.
"""

from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response

from leasekeeper.core.accounts import Limit
from leasekeeper.core.alerts import Endpoint, NewEndpoint, secret_of
from leasekeeper.core.deliveries import Delivery
from leasekeeper.core.doctor.findings import Finding, Group
from leasekeeper.core.launchers import USUAL_CALLS_PER_MINUTE, VENDORS, Launcher
from leasekeeper.core.tokens import ApiToken, Scope, state_of
from leasekeeper.core.workers import Worker, reports
from leasekeeper.encryption import read_keyring
from leasekeeper.errors import LeasekeeperError
from leasekeeper.runtime.doctor import ALL, Installation, examine_site
from leasekeeper.service.auth import create_token as make_token
from leasekeeper.service.pages.actions import refused_text
from leasekeeper.service.pages.rendering import page
from leasekeeper.service.pages.visit import Visit
from leasekeeper.webhooks.message import new_secret
from leasekeeper.wording.doctor import todo_text

MAX_SHOWN: Final = 200
DELIVERIES: Final = 50
# Those that need attention come first.
WORKER_STATES: Final = ("unwell", "active", "silent", "stopped")
# Groups of doctor's checks, as the command line calls them.
GROUPS: Final = (
    (Group.INSTALLATION, "Installation"),
    (Group.PROFILES, "Before you scale: profiles"),
    (Group.QUEUE, "Before you scale: the queue"),
)


async def view(visit: Visit) -> Response:
    return await _page(visit, examined="examine" in visit.query and visit.has("admin"))


async def examine(visit: Visit) -> list[tuple[str, list[Finding]]]:
    """The findings of doctor on the machine of this server, by group. Starts no browser and changes nothing."""
    findings = await examine_site(Installation(visit.service.config, with_browser=False), ALL)
    return [(title, [each for each in findings if each.check.group is group]) for group, title in GROUPS]


async def _page(
    visit: Visit, *, created: tuple[str, str] | None = None, said: str = "", examined: bool = False
) -> Response:
    stats = await visit.stats()
    workers = await visit.find_if_allowed(Worker, limit=MAX_SHOWN)
    ttl = visit.service.config.policy.worker_ttl
    tokens = await visit.find_if_allowed(ApiToken, limit=MAX_SHOWN)
    return await page(
        visit,
        "settings.html",
        title="Settings",
        todo=todo_text,
        status=400 if said else 200,
        workers=sorted(
            ((each, _worker_state(each, stats.now, ttl)) for each in workers),
            key=lambda row: WORKER_STATES.index(row[1]),
        ),
        limits=await visit.find_if_allowed(Limit, limit=MAX_SHOWN),
        launchers=await visit.find_if_allowed(Launcher, limit=MAX_SHOWN),
        vendors=VENDORS,
        usual_calls=USUAL_CALLS_PER_MINUTE,
        tokens=[(token, state_of(token, stats.now)) for token in tokens],
        endpoints=await visit.find_if_allowed(Endpoint, limit=MAX_SHOWN),
        deliveries=await visit.find_if_allowed(Delivery, limit=DELIVERIES),
        scopes=tuple(Scope),
        created=created,
        said=said,
        examined=await examine(visit) if examined else [],
    )


def _worker_state(worker: Worker, now: Any, ttl: timedelta) -> str:
    if worker.stopped_at is not None:
        return "stopped"
    if not reports(worker, now, ttl):
        return "silent"
    return "unwell" if worker.unwell_reason else "active"


async def create_token(visit: Visit) -> Response:
    """Create a token and show its text."""
    fields = await visit.fields()
    form = dict(fields)
    scopes = [Scope(value) for name, value in fields if name == "scope" and value in set(Scope)]
    try:
        await visit.service.permissions.check(visit.token, "create_token", {})
        made = await make_token(visit.service.store, form.get("name", "").strip(), scopes, actor=visit.actor)
    except LeasekeeperError as error:
        return await _page(visit, said=refused_text(error, "the token"))
    return await _page(visit, created=(f"Token {made.token.name}", made.text))


async def add_endpoint(visit: Visit) -> Response:
    """Register an endpoint and show its signing secret."""
    form = await visit.form()
    endpoint_id, secret = form.get("endpoint_id", "").strip(), new_secret()
    try:
        await visit.service.permissions.check(visit.token, "add_endpoint", {})
        sealed = read_keyring(visit.service.config.secrets).seal(secret_of(endpoint_id), secret)
        events = tuple(form.get("events", "").replace(",", " ").split())
        new = NewEndpoint(endpoint_id=endpoint_id, url=form.get("url", "").strip(), events=events)
        await visit.service.store.add_endpoint(new, sealed, actor=visit.actor)
    except LeasekeeperError as error:
        return await _page(visit, said=refused_text(error, "the endpoint"))
    return await _page(visit, created=(f"Signing secret of endpoint {endpoint_id}", secret))
