"""Pins the names that users import. A name added or removed here is a promise made or broken:
it belongs into CHANGELOG.md.
"""

import leasekeeper

PUBLIC_NAMES: list[str] = [
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


def test_the_public_names_are_these() -> None:
    assert sorted(leasekeeper.__all__) == PUBLIC_NAMES


def test_every_public_name_is_there() -> None:
    assert [name for name in leasekeeper.__all__ if not hasattr(leasekeeper, name)] == []
