"""Leasekeeper: profile leases and an account-aware job queue for persistent browser profiles.

The names below are the public ones. They are loaded when first used, so that importing the package costs nothing.
"""

from leasekeeper.version import __version__ as __version__

TYPE_CHECKING = False  # not from typing: until `__main__` is imported, Ctrl-C prints a traceback
if TYPE_CHECKING:
    from typing import Any

    from leasekeeper.app import App, Run, SyncRun
    from leasekeeper.client import Client, HeldLease, connect
    from leasekeeper.core.accounts import Account, Limit, Proxy
    from leasekeeper.core.canaries import Canary
    from leasekeeper.core.decisions import Action, Decision, Review, Target
    from leasekeeper.core.deliveries import Delivery
    from leasekeeper.core.events import Event
    from leasekeeper.core.jobs import Job, JobSpec, JobState
    from leasekeeper.core.leases import Lease, RunRecord
    from leasekeeper.core.notes import Note
    from leasekeeper.core.profiles import Lane, Profile, ProfileState
    from leasekeeper.core.why_answer import Why
    from leasekeeper.core.workers import Worker
    from leasekeeper.errors import Fail, LeasekeeperError, LeaseLost, ProfileBusy
    from leasekeeper.ports import Store
    from leasekeeper.runtime.leased_browser import LeasedBrowser
    from leasekeeper.stores import open_store
    from leasekeeper.sync_browser import SyncBrowser, browser
    from leasekeeper.sync_lease import SyncLease, lease
    from leasekeeper.wording.why import why_text

_HOMES = {
    "leasekeeper.app": ("App", "Run", "SyncRun"),
    "leasekeeper.client": ("Client", "HeldLease", "connect"),
    "leasekeeper.core.accounts": ("Account", "Limit", "Proxy"),
    "leasekeeper.core.canaries": ("Canary",),
    "leasekeeper.core.decisions": ("Action", "Decision", "Review", "Target"),
    "leasekeeper.core.deliveries": ("Delivery",),
    "leasekeeper.core.events": ("Event",),
    "leasekeeper.core.jobs": ("Job", "JobSpec", "JobState"),
    "leasekeeper.core.leases": ("Lease", "RunRecord"),
    "leasekeeper.core.notes": ("Note",),
    "leasekeeper.core.profiles": ("Lane", "Profile", "ProfileState"),
    "leasekeeper.core.why_answer": ("Why",),
    "leasekeeper.core.workers": ("Worker",),
    "leasekeeper.errors": ("Fail", "LeasekeeperError", "LeaseLost", "ProfileBusy"),
    "leasekeeper.ports": ("Store",),
    "leasekeeper.runtime.leased_browser": ("LeasedBrowser",),
    "leasekeeper.stores": ("open_store",),
    "leasekeeper.sync_browser": ("SyncBrowser", "browser"),
    "leasekeeper.sync_lease": ("SyncLease", "lease"),
    "leasekeeper.wording.why": ("why_text",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Account",
    "Action",
    "App",
    "Canary",
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
    "LeasedBrowser",
    "LeasekeeperError",
    "Limit",
    "Note",
    "Profile",
    "ProfileBusy",
    "ProfileState",
    "Proxy",
    "Review",
    "Run",
    "RunRecord",
    "Store",
    "SyncBrowser",
    "SyncLease",
    "SyncRun",
    "Target",
    "Why",
    "Worker",
    "browser",
    "connect",
    "lease",
    "open_store",
    "why_text",
]


def __getattr__(name: str) -> "Any":
    if name not in _HOME_OF:
        raise AttributeError(f"module 'leasekeeper' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value
