"""Routing keys: what must run one at a time, decided by the account's policy.

A key is held by leases. Under `account_task` only read-only (shared) jobs get the narrow key; a job that
may change something takes the whole account's key, because the strict reading is the safe one.
"""

from leasekeeper.core.accounts import Routing
from leasekeeper.core.ids import AccountId, ProfileId

ROUTING_KEY_LIMIT = 1


def routing_key(
    routing: Routing, *, account_id: AccountId, profile_id: ProfileId, task: str | None, shared: bool
) -> str:
    """The key that a run of this task in this profile must hold."""
    match routing:
        case Routing.PROFILE:
            return f"profile:{profile_id}"
        case Routing.ACCOUNT:
            return f"account:{account_id}"
        case Routing.ACCOUNT_TASK:
            if shared and task is not None:
                return f"account:{account_id}:task:{task}"
            return f"account:{account_id}"


def is_account_key(key: str) -> bool:
    """Whether the key is wider than one profile, so that lanes may wait for it."""
    return key.startswith("account:")
