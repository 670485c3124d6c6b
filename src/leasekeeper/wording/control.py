"""Why a job does not continue in the browser that a person has, in a sentence."""

from typing import assert_never

from leasekeeper.core.control import NotResumed
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, may_have_been_done
from leasekeeper.core.profiles import Lane


def not_resumed(why: NotResumed, job: Job, lane: Lane, before: Lease) -> str:
    """Why the job is not handed back. `before` is the lease that the person hands back."""
    match why:
        case NotResumed.NOT_WAITING:
            return f"job {job.job_id} is {job.state}: it does not wait to be handed back"
        case NotResumed.PAUSED:
            return f"account {lane.account_id}, its pool or everything is paused: no job runs there now"
        case NotResumed.PROFILE_LEAVES:
            return f"profile {lane.profile_id} will be {lane.verdict or lane.drain} when this lease ends"
        case NotResumed.MAY_BE_DONE_TWICE:
            done = may_have_been_done(before)
            return f"{done}: the task of job {job.job_id} would begin anew, and might do it twice"
        case _:
            assert_never(why)
