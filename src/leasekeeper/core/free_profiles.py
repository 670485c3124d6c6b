"""Any free profile: which are meant, and what a list of them says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from leasekeeper.core.ids import AccountId, ProfileId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileChoice:
    """Any profile of a pool that has these labels. A profile's tier counts as its label `tier`.

    With `machine`, none whose directory is on another one.
    """

    pool: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    machine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeProfile:
    """A profile that nobody has. It rests since `since_at`."""

    profile_id: ProfileId
    account_id: AccountId
    since_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeProfiles:
    """Free profiles, the one that rested longest first. `after` continues the list; None: these were the last.

    `counts`, if asked for: how many that match are blocked for each reason; those under "" are not blocked.
    """

    items: tuple[FreeProfile, ...] = ()
    after: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


def has_labels(labels: Mapping[str, str], tier: str | None, wanted: Mapping[str, str]) -> bool:
    """Whether a profile with these labels and this tier is meant. Its tier counts as a label of that name."""
    own = labels if tier is None else {"tier": tier, **labels}
    return wanted.items() <= own.items()
