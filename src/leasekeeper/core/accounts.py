"""Accounts, proxies and pool limits: the rest of what a fleet file declares."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from leasekeeper.core.ids import AccountId, ProxyId


class Routing(StrEnum):
    """What runs one at a time. A policy of the account, so that two jobs cannot disagree."""

    PROFILE = "profile"
    ACCOUNT = "account"
    ACCOUNT_TASK = "account_task"


class BanStatus(StrEnum):
    """Whether the site has banned the account or profile, as far as is known."""

    NONE = "none"
    SUSPECTED = "suspected"
    BANNED = "banned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The identity being operated. `url` is where a person logs in. The login canary opens `canary_url` at the end of a
    run: if that page shows `canary_selector`, the profile is still logged in. `paused` and `ban_status` are runtime
    state: a fleet file cannot change them."""

    account_id: AccountId
    routing: Routing = Routing.PROFILE
    url: str | None = None
    canary_url: str | None = None
    canary_selector: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
    paused: bool = False
    pause_note: str = ""
    ban_status: BanStatus = BanStatus.NONE
    version: int = 1


class ProxyTrouble(StrEnum):
    """What is wrong with a proxy: it exits elsewhere than declared, or it cannot be reached."""

    MISMATCH = "mismatch"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A named network exit. `credentials` is a reference (`env:NAME`, `file:PATH`, `secret:NAME`), never the secret.

    The fields from `trouble` on are runtime state: what is wrong and since when, how often it was checked (`asked`),
    and when the next check is due (`ask_at`). While `trouble` is set, the lanes of the proxy's profiles are blocked.
    """

    proxy_id: ProxyId
    server: str
    region: str | None = None
    credentials: str | None = None
    trouble: ProxyTrouble | None = None
    trouble_detail: str = ""
    trouble_at: datetime | None = None
    asked: int = 0
    ask_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The maximum number of leases that one pool may have at once, fleet-wide: usually what the
    vendor's plan allows."""

    pool: str
    max_leases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredAccount:
    """What is kept of an account after it was removed: its pause and its ban status."""

    paused: bool
    pause_note: str
    ban_status: BanStatus
    version: int


def declared_again(account: Account, before: RetiredAccount | None) -> Account:
    """The account as declared, with the pause and ban status that it had when it was removed (`before`), if it was."""
    if before is None:
        return account
    return replace(
        account,
        paused=before.paused,
        pause_note=before.pause_note,
        ban_status=before.ban_status,
        version=before.version + 1,
    )


def with_ban(account: Account, status: BanStatus, reason: str) -> Account:
    """The account with this ban status. BANNED also pauses it; the end of a ban resumes nothing: a person does."""
    changed = replace(account, ban_status=status, version=account.version + 1)
    if status is not BanStatus.BANNED or account.paused:
        return changed
    return replace(changed, paused=True, pause_note=reason)
