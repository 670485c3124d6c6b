"""Leasehold: profile leases and an account-aware job queue for persistent browser profiles.

The names below are the public ones. They are loaded when first used, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasehold.app import App, Run, SyncRun
    from leasehold.client import Client, HeldLease, connect
    from leasehold.core.accounts import Account, Limit, Proxy
    from leasehold.core.decisions import Action, Decision, Review, Target
    from leasehold.core.deliveries import Delivery
    from leasehold.core.events import Event
    from leasehold.core.jobs import Job, JobSpec, JobState
    from leasehold.core.leases import Lease, RunRecord
    from leasehold.core.profiles import Lane, Profile, ProfileState
    from leasehold.core.why import Why
    from leasehold.core.workers import Worker
    from leasehold.errors import Fail, LeaseholdError, LeaseLost, ProfileBusy
    from leasehold.ports import Store
    from leasehold.stores import open_store

__version__ = "0.1.0"

_HOMES = {
    "leasehold.app": ("App", "Run", "SyncRun"),
    "leasehold.client": ("Client", "HeldLease", "connect"),
    "leasehold.core.accounts": ("Account", "Limit", "Proxy"),
    "leasehold.core.decisions": ("Action", "Decision", "Review", "Target"),
    "leasehold.core.deliveries": ("Delivery",),
    "leasehold.core.events": ("Event",),
    "leasehold.core.jobs": ("Job", "JobSpec", "JobState"),
    "leasehold.core.leases": ("Lease", "RunRecord"),
    "leasehold.core.profiles": ("Lane", "Profile", "ProfileState"),
    "leasehold.core.why": ("Why",),
    "leasehold.core.workers": ("Worker",),
    "leasehold.errors": ("Fail", "LeaseholdError", "LeaseLost", "ProfileBusy"),
    "leasehold.ports": ("Store",),
    "leasehold.stores": ("open_store",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Account",
    "Action",
    "App",
    "Client",
    "Decision",
    "Delivery",
    "Event",
    "Fail",
    "HeldLease",
    "Job",
    "JobSpec",
    "JobState",
    "Lane",
    "Lease",
    "LeaseLost",
    "LeaseholdError",
    "Limit",
    "Profile",
    "ProfileBusy",
    "ProfileState",
    "Proxy",
    "Review",
    "Run",
    "RunRecord",
    "Store",
    "SyncRun",
    "Target",
    "Why",
    "Worker",
    "connect",
    "open_store",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'leasehold' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value
