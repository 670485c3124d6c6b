"""Leases any free profile of a pool: the one that rested longest, under all limits. Says why there is none.

The store lists candidates without locking them; each is then requested as a named profile is. If another program gets
a candidate first, that costs one request, and the next one is tried.
"""

from collections import Counter
from dataclasses import replace
from typing import Final

from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.core.profiles import ProfileState
from leasekeeper.core.readiness import Blocked
from leasekeeper.errors import NotFound, ProfileBusy
from leasekeeper.ports import Grant, LeaseRequest, Store
from leasekeeper.runtime.lost_leases import LostLeases

MAX_PAGES: Final = 1_000


async def acquire_any(store: Store, lost_leases: LostLeases, choice: ProfileChoice, request: LeaseRequest) -> Grant:
    """Lease a profile. Raises ProfileBusy, which counts the profiles by why they are not free, or NotFound if none
    matches.

    If none is free, expired and lost leases are ended and resolved, as for a single profile, and it tries again.
    """
    choice = replace(choice, machine=request.machine)
    grant = await _first_free(store, choice, request)
    if grant is None and await lost_leases.resolve_all():
        grant = await _first_free(store, choice, request)
    if grant is None:
        raise await _none_free(store, choice)
    return grant


async def _first_free(store: Store, choice: ProfileChoice, request: LeaseRequest) -> Grant | None:
    after, taken = None, set[str]()
    for _ in range(MAX_PAGES):
        free = await store.free_profiles(choice, after=after)
        for each in free.items:
            if each.account_id in taken:
                continue
            try:
                return await store.acquire(replace(request, profile_id=each.profile_id, again=True))
            except NotFound:
                continue  # it was removed from the fleet meanwhile
            except ProfileBusy as busy:
                if busy.reason == Blocked.CAPACITY:
                    return None  # the pool is full: no other profile of it can be leased
                if busy.state == ProfileState.AVAILABLE and busy.reason != Blocked.HOME:
                    taken.add(each.account_id)  # its account is in use: all its profiles are busy
        after = free.after
        if after is None:
            break
    return None


async def _none_free(store: Store, choice: ProfileChoice) -> ProfileBusy | NotFound:
    counted = Counter((await store.free_profiles(choice, counted=True)).counts)
    labels = ", ".join(f"{name}={value}" for name, value in choice.labels.items())
    which = f"pool {choice.pool}" + (f" with {labels}" if labels else "")
    if not counted:
        return NotFound(f"no profile of {which} is declared", what="profile", id=choice.pool)
    free = counted.pop("", 0)
    reasons = [f"{count} {reason}" for reason, count in counted.most_common()]
    if free:
        reasons.append(f"{free} whose pool is full or whose account is in use")
    most = counted.most_common(1)
    reason = Blocked.CAPACITY if free else most[0][0]
    return ProfileBusy(f"no profile of {which} is free: {', '.join(reasons)}", reason=reason)
