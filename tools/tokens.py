"""docs/reference/tokens.md: what each scope of a token allows, and what a restricted token may do."""

from typing import Final

from leasekeeper.core.alerts import Endpoint
from leasekeeper.core.leases import Purpose
from leasekeeper.core.secrets import Secret
from leasekeeper.core.tokens import DECISIONS, OPERATIONS, ApiToken, Reach, Scope, to_acquire, to_read
from tools.markdown import page, table

SCOPES: Final = {
    Scope.READ: "dashboards and scripts that only read: lists, single records, why, counts",
    Scope.SUBMIT: "programs that submit jobs",
    Scope.WORK: "workers, and programs that lease profiles",
    Scope.OPERATE: "people who run the fleet: pause, disable, cancel, retry, revoke, replay; and the sweeper",
    Scope.REVIEW: "people who judge what runs left behind: clear, quarantine, approve, requeue",
    Scope.ADMIN: "everything, and alone: fleet files, tokens, secrets",
}
REACH: Final = {
    Reach.NOTHING: "may",
    Reach.TARGET: "only about its accounts and pools",
    Reach.POOL: "only for its pools; not if it is restricted to accounts",
    Reach.OWN_LEASES: "only under leases that were granted to this token, restricted or not",
    Reach.FLEET: "may not",
}


def tokens() -> str:
    """What each scope of a token allows, and what a restricted token is held to."""
    decisions = [(f"decide: {action} a {target}", needs) for (target, action), needs in DECISIONS.items()]
    calls = [*((name, needs) for name, needs in OPERATIONS.items() if name != "decide"), *decisions]
    reads = [(f"list or get {kind.__name__}", to_read(kind)) for kind in (ApiToken, Secret, Endpoint)]
    reads.append(("acquire, to inspect", to_acquire(Purpose.INSPECT)))
    return page(
        "Tokens",
        "How to create one: [Create tokens](../howto/create-tokens.md). `admin` includes all other scopes; none of\n"
        "the others includes another. Calls are named as the operations of the [port](../../src/leasekeeper/ports.py).",
        table(["scope", "for"], [(f"`{scope}`", SCOPES[scope]) for scope in Scope]),
        "## Calls",
        table(
            ["call", "scope", "a restricted token"],
            [(f"`{name}`", f"`{needs.scope}`", REACH[needs.reach]) for name, needs in (*calls, *reads)],
        ),
    )
