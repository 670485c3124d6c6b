"""Leases of any free profile: which profiles qualify, and the list of those that are free."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from leasekeeper.core.ids import AccountId, ProfileId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileChoice:
    """Any profile of a pool that has these labels. A profile's tier counts as its label `tier`.

    With `machine`, profiles whose directory is on another machine do not qualify.
    """

    pool: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    machine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeProfile:
    """A profile that nobody has leased since `since_at`."""

    profile_id: ProfileId
    account_id: AccountId
    since_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeProfiles:
    """Free profiles, the one that rested longest first. `after` is where the next page starts; None: this is the last.

    `counts`, if requested: how many profiles that match are blocked, by reason; those under "" are not blocked.
    """

    items: tuple[FreeProfile, ...] = ()
    after: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


def has_labels(labels: Mapping[str, str], tier: str | None, wanted: Mapping[str, str]) -> bool:
    """Whether a profile with these labels and this tier has all `wanted` labels. Its tier counts as
    its label `tier`."""
    own = labels if tier is None else {"tier": tier, **labels}
    return wanted.items() <= own.items()
