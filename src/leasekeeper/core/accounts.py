"""Accounts, proxies and pool limits: the rest of what a fleet file declares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from leasekeeper.core.ids import AccountId, ProxyId


class Routing(StrEnum):
    """What runs one at a time. A policy of the account, so that two jobs cannot disagree."""

    PROFILE = "profile"
    ACCOUNT = "account"
    ACCOUNT_TASK = "account_task"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The identity being operated. `paused` is runtime state: a fleet file cannot change it."""

    account_id: AccountId
    routing: Routing = Routing.PROFILE
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
    paused: bool = False
    pause_note: str = ""
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """A named network exit. `credentials` is a reference (`env:NAME`, `file:PATH`), never the secret."""

    proxy_id: ProxyId
    server: str
    region: str | None = None
    credentials: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The most leases that one pool may hold at once, fleet-wide: a vendor's plan, usually."""

    pool: str
    max_leases: int
