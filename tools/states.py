"""docs/reference/states.md: what each state of a profile and of a job means, and every move there is."""

from typing import Final

from leasekeeper.core.decisions import JOB_ACTIONS, PROFILE_ACTIONS
from leasekeeper.core.jobs import FINAL, JOB_TRANSITIONS, JobState
from leasekeeper.core.profiles import STATE_DATA, TRANSITIONS, Cause, Doubt, ProfileState, StateCause
from tools.markdown import code, page, table

PROFILE_STATES: Final = {
    ProfileState.AVAILABLE: "ready for checkout",
    ProfileState.LEASED: "in use",
    ProfileState.STALE: "its holder stopped reporting or could not prove a clean close; what it left is unknown",
    ProfileState.REVIEW_REQUIRED: "a person has to check it",
    ProfileState.QUARANTINED: "unsafe until a person clears it",
    ProfileState.DISABLED: "out of rotation",
}
CAUSES: Final = {
    Cause.GRANTED: "a lease was granted",
    Cause.INSPECTED: "a person opens it to look inside, under an `inspect` lease",
    Cause.CLEAN_RELEASE: "the run ended safely and no quarantine trigger fired",
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
STATE_CAUSES: Final = {
    StateCause.ADDED: "a fleet declared it",
    StateCause.GRANTED: "a lease was granted",
    StateCause.CLEAN_RELEASE: "its run ended, and its browser was proven closed",
    StateCause.HANDED_OVER: "its run ended, and its browser stayed open for the next one",
    StateCause.GIVEN_BACK: "its job was given back before it started",
    StateCause.LEASE_EXPIRED: "its lease expired: the holder was not heard of",
    StateCause.LEASE_REVOKED: "a person revoked its lease, and it ran out",
    StateCause.NOT_PROVEN_CLOSED: "its run ended, and its browser was not proven closed",
    StateCause.LAUNCHER_SILENT: "its launcher does not say whether the browser of a lost run still runs",
    StateCause.OPEN_SECTION: "the run ended, or its holder vanished, inside a mutating section",
    StateCause.FINAL_URL_UNKNOWN: "the run ended with a browser whose final URL is unknown",
    StateCause.PROXY_CHANGED: "its proxy changed during the run",
    StateCause.SECURITY_PROMPT: "a security prompt appeared",
    StateCause.RUN_STOPPED: "the run stopped for a reason that keeps it out of rotation",
    StateCause.DIRECTORY_EMPTY: "its directory was empty, and should not be",
    StateCause.EVIDENCE_NOT_SAVED: "the run's evidence could not be saved",
    StateCause.STORE_LOST_WRITES: "the store lost its last writes during a run that failed or was lost",
    StateCause.RELEASE_POLICY: "nobody explained the run's end, and its release policy says so",
    StateCause.RECOVERED: "nobody explained the run's end, and all that `recover` asks for is proven",
    StateCause.NOT_RECOVERED: "the release policy is `recover`, and not all that it asks for is proven",
    StateCause.RESTORED: "nobody explained the run's end, and it went back to its last good snapshot",
    StateCause.NOT_RESTORED: "the release policy is `restore`, and it cannot go back",
    StateCause.DECIDED: "a person decided",
    StateCause.LEASE_FORGOTTEN: "somebody works under a lease that the store granted and forgot",
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
        "What put a profile into its state is `state_cause`, with its facts in `state_data`. Both are in the\n"
        "profile's record, in `why` and in the event that led to the state; `state_reason` says the same to people.\n"
        "It is null where an earlier version wrote the state.",
        table(
            ["state_cause", "meaning", "state_data"],
            [(f"`{cause}`", STATE_CAUSES[cause], code(STATE_DATA[cause])) for cause in StateCause],
        ),
        "A fact that is not known, or does not apply, is left out. `ending` is how the lease of a lost run ended:\n"
        "`expired`, `revoked`, or `released` without proof that the browser was closed. `clause` is the failing one\n"
        "of the clean-close proof. `seconds` passed between the last safe step and the end, or the last heartbeat.\n"
        f"`doubts` are some of {code(Doubt)}.",
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
