"""The lines in a worker's log about each run: one when it starts, one when it has ended."""

import logging

from leasekeeper.core.jobs import attempt_text
from leasekeeper.core.settle import Ending
from leasekeeper.ports import Settled
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.run_state import RunState
from leasekeeper.wording import REFUSALS

_LOG = logging.getLogger("leasekeeper.runtime.runner")


def started(current: RunState) -> None:
    """Log the start: the lease is granted, no browser is open yet."""
    lease, job = current.grant.lease, current.grant.job
    _LOG.info(
        "run %s started: task %s, job %s, %s, profile %s, worker %s, lease %s",
        lease.run_id,
        lease.task,
        lease.job_id,
        attempt_text(job.attempt, job.max_attempts) if job else "attempt 1",
        lease.profile_id,
        lease.worker_id,
        lease.lease_id,
    )


def ended(current: RunState, ending: Ending, settled: Settled) -> None:
    """Log the end, once the store has answered."""
    lease = current.grant.lease
    if settled.refused is not None:
        _LOG.warning("run %s: the ending was refused: %s", lease.run_id, REFUSALS[settled.refused])
        return
    _LOG.info(
        "run %s ended: %s after %.1f s; task %s, job %s is %s, profile %s is %s, worker %s, lease %s",
        lease.run_id,
        ending.reason or "completed",
        boot_time() - current.began,
        lease.task,
        lease.job_id,
        settled.job_state,
        lease.profile_id,
        settled.profile_state,
        lease.worker_id,
        lease.lease_id,
        extra={"reason": ending.reason, "seconds": round(boot_time() - current.began, 3)},
    )
