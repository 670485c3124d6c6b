"""Acquires direct leases: waits while the profile is busy, and gives back a lease whose caller was cancelled."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.errors import LeasekeeperError, ProfileBusy
from leasekeeper.ports import Grant, LeaseRequest, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.free_profile import acquire_any
from leasekeeper.runtime.lost_leases import LostLeases

ASK_AGAIN = timedelta(seconds=1)


async def acquire_waiting(
    store: Store, lost_leases: LostLeases, request: LeaseRequest, choice: ProfileChoice | None, wait: timedelta
) -> tuple[Grant, float]:
    """The lease, and when it was requested (boot time). Retries while the profile is busy, until `wait` has passed;
    then raises ProfileBusy."""
    until = boot_time() + wait.total_seconds()
    while True:
        sent_at = boot_time()
        try:
            return await _acquire(store, lost_leases, request, choice), sent_at
        except ProfileBusy as busy:
            if boot_time() >= until:
                if busy.profile_id is not None:  # shown below the traceback of a script
                    busy.add_note(
                        f"ask `why` about profile {busy.profile_id}: what happens next, and what you can decide"
                    )
                raise
            request = replace(request, again=True)
            pause = min(ASK_AGAIN.total_seconds(), max(0.0, until - boot_time()))
            await store.wait("", timedelta(seconds=pause))


async def _acquire(store: Store, lost_leases: LostLeases, request: LeaseRequest, choice: ProfileChoice | None) -> Grant:
    """Ask for the lease once. If the caller is cancelled meanwhile, a lease that is still granted is given back."""
    found = lost_leases.acquire(request) if choice is None else acquire_any(store, lost_leases, choice, request)
    asking = asyncio.ensure_future(found)
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        with suppress(LeasekeeperError):
            grant = await asking
            await store.settle([Ending(ref=grant.lease.ref, facts=EndFacts(browser=Browser.NONE))])
        raise
