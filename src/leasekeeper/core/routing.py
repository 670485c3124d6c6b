"""Routing keys: what must run one at a time, decided by the account's policy.

A key is held by leases. Under `account_task` only read-only (shared) jobs get the narrow key; a job that
may change something takes the whole account's key, because the strict reading is the safe one.
Only this module knows how a key is spelt.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from leasekeeper.core.accounts import Account, Routing
from leasekeeper.core.ids import AccountId, ProfileId

ROUTING_KEY_LIMIT = 1
_WIDE = "account:"
_TASK = ":task:"


def routing_key(
    routing: Routing, *, account_id: AccountId, profile_id: ProfileId, task: str | None, shared: bool
) -> str:
    """The key that a run of this task in this profile must hold."""
    match routing:
        case Routing.PROFILE:
            return f"profile:{profile_id}"
        case Routing.ACCOUNT:
            return account_key(account_id)
        case Routing.ACCOUNT_TASK:
            if shared and task is not None:
                return f"{account_key(account_id)}{_TASK}{task}"
            return account_key(account_id)


def account_key(account_id: str) -> str:
    """The key of the whole account."""
    return f"{_WIDE}{account_id}"


def is_account_key(key: str) -> bool:
    """Whether the key is wider than one profile, so that lanes may wait for it."""
    return key.startswith(_WIDE)


def account_of(key: str) -> AccountId:
    """The account in an account's key."""
    return AccountId(key.removeprefix(_WIDE).partition(":")[0])


class Holding(NamedTuple):
    """How many live leases of an account were granted under a key. `routing` is the account's routing now."""

    account_id: str
    routing: str
    routing_key: str
    leases: int


def held_keys(holdings: Iterable[Holding]) -> dict[str, int]:
    """How many live leases each account key has. Leases that were granted before the account got its routing count for
    the key of the whole account: nobody knows what else they may conflict with."""
    held: dict[str, int] = {}
    for holding in holdings:
        wide = holding.routing == Routing.ACCOUNT or not is_account_key(holding.routing_key)
        key = account_key(holding.account_id) if wide else holding.routing_key
        held[key] = held.get(key, 0) + holding.leases
    return held


def is_taken(key: str, held: Mapping[str, int]) -> bool:
    """Whether a lane has to wait for the key. False for a profile's own key: the lane itself checks that."""
    return is_account_key(key) and held.get(key, 0) >= ROUTING_KEY_LIMIT


def freed_keys(account: Account, key: str) -> list[str]:
    """The account keys that the end of a lease may free: its own key, and that of the whole account if the account is
    routed so now."""
    earlier = account.routing is Routing.ACCOUNT_TASK and not is_account_key(key)
    wide = account.routing is Routing.ACCOUNT or earlier
    keys = {key, account_key(account.account_id)} if wide else {key}
    return [key for key in sorted(keys) if is_account_key(key)]
