"""docs/reference/states.md: what each state of a profile and of a job means, and every move there is."""

from typing import Final

from leasekeeper.core.decisions import JOB_ACTIONS, PROFILE_ACTIONS
from leasekeeper.core.jobs import FINAL, JOB_TRANSITIONS, JobState
from leasekeeper.core.profiles import TRANSITIONS, Cause, ProfileState
from tools.markdown import code, page, table

PROFILE_STATES: Final = {
    ProfileState.AVAILABLE: "ready for checkout",
    ProfileState.LEASED: "in use",
    ProfileState.STALE: "its holder stopped reporting or could not prove a clean close; what it left is unknown",
    ProfileState.REVIEW_REQUIRED: "needs human eyes",
    ProfileState.QUARANTINED: "unsafe until a person clears it",
    ProfileState.DISABLED: "out of rotation",
}
CAUSES: Final = {
    Cause.GRANTED: "a lease was granted",
    Cause.INSPECTED: "a person looks inside, under an `inspect` lease",
    Cause.CLEAN_RELEASE: "the run ended safely and nothing stands against the profile",
    Cause.EXPIRED: "the lease expired, or a person revoked it",
    Cause.NOT_PROVEN_CLOSED: "the holder could not say that its browser was closed cleanly",
    Cause.NEEDS_PERSON: "the run stopped for a reason that needs a person",
    Cause.EVIDENCE_NOT_SAVED: "the run's evidence could not be saved",
    Cause.QUARANTINE_TRIGGER: "a quarantine trigger fired: it ended inside a mutating section, the final URL is "
    "unknown, the proxy changed, or a security prompt appeared",
    Cause.RESOLVED: "the sweeper resolved it, by the lease's release policy and what was found out",
    Cause.DECIDED: "a person decided, with a note",
    Cause.DRAINED: "a person had decided so while it was in use, or had only looked inside",
}
JOB_STATES: Final = {
    JobState.SCHEDULED: "due later: by `run_at`, after a retry's delay, or rescheduled by a conflict",
    JobState.QUEUED: "in its profile's lane, next in turn when a worker asks",
    JobState.BLOCKED: "cannot run now, for a [reason](blocked-reasons.md) that has a next step",
    JobState.RUNNING: "a worker holds its profile for it",
    JobState.REVIEW: "waits for a person",
    JobState.COMPLETED: "done",
    JobState.DEAD: "used up its attempts: the dead-letter queue",
    JobState.SKIPPED: "its profile was taken when it was due, and it asked to be skipped then",
    JobState.CANCELLED: "a person cancelled it",
}


def states() -> str:
    """Profile states and job states: what each is, and every move there is."""
    return page(
        "States",
        "## Profiles",
        table(["state", "meaning"], [(f"`{state}`", PROFILE_STATES[state]) for state in ProfileState]),
        _profile_diagram(),
        "Any other move is refused with `ILLEGAL_TRANSITION`.",
        table(
            ["from", "to", "when"],
            [
                (f"`{before}`", f"`{after}`", "; ".join(CAUSES[cause] for cause in sorted(causes)))
                for (before, after), causes in TRANSITIONS.items()
            ],
        ),
        "What a person may decide about a profile:",
        table(
            ["decision", "from → to"],
            [
                (f"`{action}`", ", ".join(f"{before} → {after}" for before, after in moves.items()))
                for action, moves in PROFILE_ACTIONS.items()
            ],
        ),
        "A decision about a leased profile drains it: it takes effect when the last lease ends. Until then it can be\n"
        "changed as if the profile were in that state already: `clear` and `enable` take it back. What the run's\n"
        "own ending asks for stands if it is stricter. `enable` leads to `review_required` if the\n"
        "profile's last ending was not clean.",
        "## Jobs",
        table(["state", "meaning"], [(f"`{state}`", JOB_STATES[state]) for state in JobState]),
        _job_diagram(),
        f"Final: {code(state for state in JobState if state in FINAL)}. A person may reopen a `dead` job; nothing\n"
        "leaves the other three. A queued job whose profile cannot run now is shown as `blocked`, with the reason\n"
        "of its lane.",
        "What a person may decide about a job:",
        table(
            ["decision", "in state"],
            [
                (f"`{action}`", code(state for state in JobState if state in states))
                for action, states in JOB_ACTIONS.items()
            ],
        ),
    )


def _profile_diagram() -> str:
    moves = [
        f"    {before} --> {after}: {', '.join(sorted(causes))}" for (before, after), causes in TRANSITIONS.items()
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> available: declared", *moves, "```"])


def _job_diagram() -> str:
    moves = [
        f"    {before} --> {after}"
        for before, afters in JOB_TRANSITIONS.items()
        for after in JobState
        if after in afters
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *moves, "```"])
