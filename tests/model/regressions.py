"""Histories that once failed, as calls of the machine's rules: they run on every store, every time.

A history that a soak finds ends up here, shortened, under a name that says what happens in it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from leasekeeper.core.accounts import Account, Routing
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, ProfileId
from leasekeeper.core.jobs import JobSpec, OnConflict
from leasekeeper.core.profiles import Profile
from tests.model.histories import ACCOUNTS, DONE, OWNERS, STARTERS, TASKS
from tests.model.machine import Machine

History = Callable[[Machine], None]


def fleet(**routing: Routing) -> Fleet:
    """The fleet that histories begin with, with these accounts routed so."""
    return Fleet(
        accounts={
            name: Account(account_id=AccountId(name), routing=routing.get(name, Routing.PROFILE)) for name in ACCOUNTS
        },
        profiles={name: Profile(profile_id=ProfileId(name), account_id=AccountId(OWNERS[name])) for name in STARTERS},
    )


def spec(profile: str, task: str = "buy") -> JobSpec:
    return JobSpec(task=task, profile_id=ProfileId(profile))


def an_ending_wakes_who_waits_for_its_account(machine: Machine) -> None:
    """a2 is parked behind the key that a1 holds. The ending of a1 wakes it: the claim beside it takes a2's job, which
    has waited longer, and not the next one of a1."""
    machine.begin(fleet(anna=Routing.ACCOUNT), [spec("a1"), spec("a1"), spec("a2")])
    for _ in range(2):
        machine.a_worker_claims("w1", "default", TASKS, 1, False)
    machine.a_worker_settles_and_claims_at_once([(0, DONE)], "default", 1, False)
    assert [held.profile for held in machine.model.leases if held.ended is None] == ["a2"]


def a_grant_takes_the_key_of_a_profile_with_room(machine: Machine) -> None:
    """b1 has room for three, but its account runs one `buy` at a time: the second does not want to wait."""
    declared = fleet(bert=Routing.ACCOUNT_TASK)
    roomy = replace(declared.profiles["b1"], max_active_runs=3, disposable=True)
    skips = replace(spec("b1"), on_conflict=OnConflict.SKIP)
    machine.begin(replace(declared, profiles={**declared.profiles, "b1": roomy}), [spec("b1"), skips])
    machine.a_worker_claims("w1", "default", TASKS, 1, False)
    assert [job.state for job in machine.model.jobs.values()] == ["running", "skipped"]


HISTORIES: Final[tuple[History, ...]] = (
    an_ending_wakes_who_waits_for_its_account,
    a_grant_takes_the_key_of_a_profile_with_room,
)
