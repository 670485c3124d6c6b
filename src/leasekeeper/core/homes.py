"""Home: the machine that has a profile's newest directory. Only its workers are given the profile's jobs.

Pure. A machine is a name that its data directory keeps (`browsers.machine_name`), never a hostname alone. An empty home
means that no browser has opened the profile yet: it is anybody's. Profiles of launchers keep their sessions elsewhere,
and runs in a throwaway copy leave no directory behind: neither has, or changes, a home.
"""

from leasekeeper.core.browsers import LOCAL
from leasekeeper.core.leases import Lease, Purpose
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.settle import Browser, Ending

NO_HOME = ""


def is_away(home: str, machine: str | None) -> bool:
    """Whether the profile's directory is on another machine than the one that asks.

    One that does not say which machine it is (None) opens no directory of ours, and is not kept out.
    """
    return bool(home) and machine is not None and home != machine


def homes_of(machine: str | None) -> list[str]:
    """The homes whose lanes a worker of this machine may take."""
    return [NO_HOME] if machine is None else [NO_HOME, machine]


def home_after(lane: Lane, profile: Profile, lease: Lease, ending: Ending | None) -> str:
    """Where the newest directory is after this lease. `ending` None: its holder vanished.

    Whatever may have been opened counts: an unproven browser has written to the directory of its machine. A program
    with a lease of its own counts only with a browser's version: many use the lease and no directory.
    """
    if lease.machine is None or profile.driver != LOCAL or profile.disposable:
        return lane.home
    if ending is not None and ending.engine is not None:
        return lease.machine
    doubtful = ending is None or ending.facts.browser is Browser.NOT_PROVEN
    return lease.machine if doubtful and lease.purpose is not Purpose.API else lane.home
