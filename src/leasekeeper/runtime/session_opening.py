"""Opening a session: lease a profile, open its browser, and leave nothing behind if the caller has left."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from leasekeeper.core.failures import Reason
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.errors import LeasekeeperError
from leasekeeper.ports import Grant, LeaseRequest, Store
from leasekeeper.runtime.direct_leases import acquire_waiting
from leasekeeper.runtime.heartbeat import Heartbeat
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.lease_opening import check_machine, open_leased
from leasekeeper.runtime.lost_leases import LostLeases
from leasekeeper.runtime.opening import BrowserOpener
from leasekeeper.runtime.session_run import SessionRun
from leasekeeper.runtime.session_terms import SessionTerms

NOBODY_WAITED: Final = "whoever asked for the session did not wait for it"


async def open_session(
    store: Store,
    opener: BrowserOpener,
    heartbeat: Heartbeat,
    lost_leases: LostLeases,
    request: LeaseRequest,
    *,
    choice: ProfileChoice | None = None,
    wait: timedelta = timedelta(0),
    terms: SessionTerms | None = None,
) -> SessionRun:
    """Lease a profile and open its browser. Raises ProfileBusy, or Conflict if the profile cannot be opened here: no
    profile is leased while this machine is unwell.

    If the caller is cancelled meanwhile, nothing is left behind: a lease is given back, a browser closed and settled.
    """
    terms = terms or SessionTerms()
    check_machine(opener.machine, heartbeat)
    request = replace(request, engine=opener.info.engine)
    grant, sent_at = await acquire_waiting(store, lost_leases, request, choice, wait)
    opening = asyncio.ensure_future(_open(store, opener, LeaseGuard(heartbeat, grant.lease, sent_at), grant, terms))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(LeasekeeperError):
            session = await opening
            session.release(Reason.TASK_ERROR, NOBODY_WAITED)
            await session.ended()
        raise


async def _open(
    store: Store, opener: BrowserOpener, guard: LeaseGuard, grant: Grant, terms: SessionTerms
) -> SessionRun:
    try:
        evidence, opened = await open_leased(store, opener, guard, grant, mode=terms.run_mode)
    except BaseException:
        guard.release()
        raise
    return SessionRun(store, opener, guard, grant, evidence, opened, terms)
