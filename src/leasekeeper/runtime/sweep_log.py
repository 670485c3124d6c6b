"""Logs what a sweep decided: one line for each lease that expired or was resolved, one for what it did to jobs.

The store's events have all of it; these lines are for readers of the log of the process that swept.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Final

from leasekeeper.core.leases import Lease, silence
from leasekeeper.core.schedules import Fired
from leasekeeper.ports import Settled
from leasekeeper.runtime.log_fields import ids_of

if TYPE_CHECKING:
    from leasekeeper.runtime.sweeper import Swept

_LOG = logging.getLogger(__name__)

MAX_LINES: Final = 50  # of one kind in one batch


def log_expired(leases: Sequence[Lease], now: datetime) -> None:
    """Log the leases that this sweep ended."""
    for lease in leases[:MAX_LINES]:
        _LOG.warning(
            "lease %s expired, profile %s is stale: %s", lease.lease_id, lease.profile_id, silence(lease, now),
            extra=ids_of(lease),
        )  # fmt: skip
    _log_rest("leases expired", leases)


def log_resolved(done: Sequence[Settled], lost: Sequence[Lease]) -> None:
    """Log what became of the profiles and jobs of leases that ended without an explanation."""
    by_id = {lease.lease_id: lease for lease in lost}
    for settled in done[:MAX_LINES]:
        lease, settlement = by_id[settled.lease_id], settled.settlement
        job = f"; job {lease.job_id} is {settled.job_state}" if lease.job_id else ""
        _LOG.warning(
            "lease %s resolved: profile %s is %s%s%s",
            lease.lease_id,
            lease.profile_id,
            settled.profile_state,
            f", {settlement.profile.reason}" if settlement is not None and settlement.profile.reason else "",
            job,
            extra={**ids_of(lease), "reason": settlement.stop_reason if settlement is not None else None},
        )
    _log_rest("leases resolved", done)


def log_fired(fired: Sequence[Fired]) -> None:
    """Log the jobs that schedules made, and those that they skipped because the previous one had not ended."""
    for one in fired[:MAX_LINES]:
        if one.made or one.skipped:
            skipped = f", {one.skipped} skipped: the job before has not ended" if one.skipped else ""
            _LOG.info("schedule %s, due at %s: %d jobs made%s", one.schedule_id, one.at, one.made, skipped)


def log_swept(swept: "Swept") -> None:
    """Log all that one sweep did. Jobs that entered their lanes and old records that were deleted get a line each."""
    if swept.promoted:
        _LOG.info("%d jobs became due, or met their conflict", swept.promoted)
    if swept.pruned:
        _LOG.info("%d old records deleted", swept.pruned)
    if swept.paused:
        _LOG.warning("the store's clock jumped: no lease expires for the next moments")
    did = ", ".join(f"{name} {count}" for name, count in asdict(swept).items() if count)
    if did:
        _LOG.debug("sweep: %s", did)


def _log_rest(what: str, items: Sequence[object]) -> None:
    if len(items) > MAX_LINES:
        _LOG.warning("%d more %s: the events have them all", len(items) - MAX_LINES, what)
