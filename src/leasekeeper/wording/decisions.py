"""What follows from each decision that a person may take, in sentences: for the job, the profile and those who wait."""

from collections.abc import Mapping
from typing import Final

from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.why_answer import Possible, Why

# For each action on a profile: its state afterwards, and what becomes of the jobs that wait for it.
_PROFILE: Final[Mapping[Action, tuple[str, str]]] = {
    Action.RESTORE: ("back to its last good snapshot, and into rotation", "may start"),
    Action.CLEAR: ("back into rotation", "may start"),
    Action.ENABLE: ("back into rotation, if its last ending was clean", "may start"),
    Action.QUARANTINE: ("unsafe until somebody clears it", "keep waiting"),
    Action.REVIEW: ("waits for a person", "keep waiting"),
    Action.DISABLE: ("out of rotation until somebody enables it", "keep waiting"),
}
_OTHERS: Final[Mapping[tuple[Target, Action], str]] = {
    (Target.JOB, Action.REQUEUE): "the job gets a new attempt when its profile is available",
    (Target.JOB, Action.RETRY): "the job gets a new attempt when its profile is available",
    (Target.JOB, Action.APPROVE): "the job may run as soon as its profile is available",
    (Target.JOB, Action.CANCEL): "the job ends as cancelled and is not run again",
    (Target.JOB, Action.PRIORITIZE): "the job runs before or after others; it keeps its state",
    (Target.JOB, Action.DROP): "the job stays dead and leaves the list",
    (Target.ACCOUNT, Action.RESUME): "jobs of the whole account may start again",
    (Target.PROXY, Action.RETRY): "the proxy is asked again now",
    (Target.LEASE, Action.REVOKE): "the run is stopped; the profile is resolved when the lease has expired",
    (Target.LEASE, Action.ANSWER): "the task that asks for a person goes on with this, at its next heartbeat",
    (Target.WEBHOOK, Action.REPLAY): "the message is sent again",
}


def consequence(possible: Possible, why: Why) -> str:
    """What happens if this is decided now. Empty: nothing is known about it."""
    if possible.target is Target.PROFILE and possible.action in _PROFILE:
        then, jobs = _PROFILE[possible.action]
        return f"{then}; {_waiting(why.profile.waiting, jobs)}"
    text = _OTHERS.get((possible.target, possible.action), "")
    doubt = f"; {possible.section} was open and may be done twice" if possible.section else ""
    return f"{text}{doubt}" if text else ""


def _waiting(number: int, then: str) -> str:
    if not number:
        return "no job waits for it"
    return (
        f"{number:,} waiting job{'s' if number != 1 else ''} {then if number != 1 else then.replace('keep', 'keeps')}"
    )
