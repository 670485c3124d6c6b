"""Opening a session: lease a profile, open its browser, and leave nothing behind if whoever asked has left."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.failures import Reason
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.errors import Conflict, LeasekeeperError
from leasekeeper.ports import Grant, LeaseRequest, Store
from leasekeeper.runtime.acquiring import acquire_waiting
from leasekeeper.runtime.evidence import RunEvidence
from leasekeeper.runtime.heartbeat import Heartbeat, settle_with_retries
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.lost_leases import LostLeases
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.runtime.opening import BrowserOpener, NotOpened, as_not_opened, unopened
from leasekeeper.runtime.session_run import SessionRun
from leasekeeper.runtime.session_terms import SessionTerms
from leasekeeper.threads import run_in_thread

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
    """Lease a profile and open its browser. Raises ProfileBusy, or Conflict if the profile cannot be opened here.

    Whoever is cancelled meanwhile leaves nothing behind: a lease is given back, a browser closed and settled.
    """
    terms = terms or SessionTerms()
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
    lease, ledger = grant.lease, Ledger(opener.data_dir)
    evidence = RunEvidence(ledger.runs_dir, lease.run_id, place=opener.place, under=lease.ref)
    try:
        await evidence.create()
        await run_in_thread(ledger.note, lease.run_id, lease.lease_id)
        opened = await opener.open(grant, guard, evidence, sync=False, mode=terms.run_mode)
    except (NotOpened, LeasekeeperError, OSError) as error:
        refused = as_not_opened(error)
        try:
            await settle_with_retries(store, unopened(opener, grant, refused), guard.kept)
        finally:
            guard.release()
        ledger.strike(lease.run_id)
        raise Conflict(
            f"profile {lease.profile_id} was not opened: {refused.message}",
            cause=ConflictReason.PROFILE_NOT_OPENED,
            profile_id=lease.profile_id,
        ) from error
    except BaseException:
        guard.release()
        raise
    return SessionRun(store, opener, guard, grant, evidence, opened, terms)
