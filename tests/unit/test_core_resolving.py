"""Lost leases, as tables: until when one waits, and what everybody who names a time for it says. No store."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from leasekeeper.core.granting import changes_at
from leasekeeper.core.jobs import Backoff
from leasekeeper.core.lanes import LaneFacts
from leasekeeper.core.leases import Lease, LeaseStatus
from leasekeeper.core.profiles import ProfileState, ReleasePolicy
from leasekeeper.core.resolving import resolve, waits_until
from leasekeeper.core.settle import LostFacts
from leasekeeper.core.why import resolution
from tests.unit.records import NOW, a_lane, a_lease, a_profile, an_account, before, seconds

# Its lock-delay is 15 s.
LOST = a_lease(status=LeaseStatus.EXPIRED, expires_at=before(5), ended_at=before(5), unresolved=True)
ENDED, DELAY_OVER = before(5), before(5) + seconds(15)
P = ReleasePolicy

WAITS: list[tuple[dict[str, Any], datetime | None]] = [
    ({"release_policy": P.QUARANTINE}, None),
    ({"release_policy": P.REVIEW}, None),
    ({"release_policy": P.RESTORE}, DELAY_OVER),
    ({"release_policy": P.RECOVER}, DELAY_OVER),
    ({"release_policy": P.RESTORE, "open_section": "pay"}, None),
    ({"release_policy": P.RECOVER, "open_section": "pay"}, None),
]


def lost(**changes: Any) -> Lease:
    return replace(LOST, **changes)


def resolved_at(lease: Lease, now: datetime) -> bool:
    settlement = resolve(lease, None, LostFacts(), now=now, jitter=0.0, backoff=Backoff(), proxy_id=None)
    return settlement is not None


@pytest.mark.parametrize(("lease", "until"), WAITS)
def test_only_a_profile_that_may_come_back_waits_for_the_lock_delay(
    lease: dict[str, Any], until: datetime | None
) -> None:
    gone = lost(**lease)
    assert waits_until(gone) == until
    assert resolved_at(gone, ENDED) is (until is None)
    assert not resolved_at(gone, DELAY_OVER - seconds(1)) or until is None
    assert resolved_at(gone, DELAY_OVER)


@pytest.mark.parametrize(("lease", "until"), WAITS)
def test_who_asks_hears_the_time_at_which_it_is_resolved(lease: dict[str, Any], until: datetime | None) -> None:
    gone = lost(**lease)
    facts = LaneFacts(
        lane=a_lane(state=ProfileState.STALE), profile=a_profile(), account=an_account(), proxy=None, open=[gone]
    )
    assert changes_at(facts) == (until or ENDED)
    assert resolution(gone).at == until


def test_a_profile_that_is_leased_changes_when_the_first_lease_expires() -> None:
    live = [a_lease(), a_lease(expires_at=NOW + seconds(20))]
    facts = LaneFacts(
        lane=a_lane(state=ProfileState.LEASED), profile=a_profile(), account=an_account(), proxy=None, open=live
    )
    assert changes_at(facts) == NOW + seconds(20)
    facts.open = []
    assert changes_at(facts) is None
