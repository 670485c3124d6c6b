"""Lists the profiles of a launcher, and which of them are declared here. For people, never for claims.

One call per page, each in its turn. Whether a profile runs is asked only about a named one.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from leasekeeper.browsers.keeper.launcher_calls import CallFailed, LauncherCalls
from leasekeeper.browsers.launchers import describe
from leasekeeper.core.accounts import Account, Limit
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import InputError
from leasekeeper.ports import Store
from leasekeeper.runtime.fleet_facts import read_all
from leasekeeper.runtime.launchers import launcher_token, note_refusal, wait_for_turn
from leasekeeper.threads import run_in_thread

MAX_PROFILES: Final = 100_000
MAX_PAGES: Final = 1_000
CALL_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A profile as its launcher lists it. `declared` is its profile id in this fleet, if it is declared."""

    launcher_profile: str
    name: str
    declared: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the fleet has already: the ids of its accounts and profiles, the pools of this launcher's profiles, and the
    limit of each pool."""

    launcher: Launcher
    ids: frozenset[str]
    pools: frozenset[str]
    limits: Mapping[str, int]

    def limit_left(self, pool: str) -> int | None:
        """How many browsers the launcher's plan leaves for this new pool. None: the plan has no limit, or the pool has.

        Raises InputError if the limits of the other pools use up the plan.
        """
        plan = self.launcher.max_running
        if plan is None or pool in self.limits:
            return None
        left = plan - sum(self.limits.get(other, 0) for other in self.pools)
        if left < 1:
            others = ", ".join(sorted(self.pools))
            raise InputError(
                f"launcher {self.launcher.launcher_id} may run {plan} browsers, and the limits of {others} allow them "
                f"all: import with --pool {others.partition(',')[0]}, or lower a limit first"
            )
        return left


async def declared_beside(store: Store, launcher: Launcher) -> Declared:
    """Read what the fleet has already, before profiles of this launcher are imported."""
    profiles = await read_all(store, Profile, MAX_PAGES)
    accounts = await read_all(store, Account, MAX_PAGES)
    return Declared(
        launcher=launcher,
        ids=frozenset([*(each.profile_id for each in profiles), *(each.account_id for each in accounts)]),
        pools=frozenset(each.pool for each in profiles if each.launcher_id == launcher.launcher_id),
        limits={each.pool: each.max_leases for each in await read_all(store, Limit, MAX_PAGES)},
    )


async def inventory(store: Store, launcher: Launcher) -> list[Listed]:
    """All profiles that the launcher lists. Raises InputError if it cannot list them, or does not answer."""
    declared = await declared_profiles(store, launcher)
    return [
        Listed(launcher_profile=key, name=name, declared=declared.get(key))
        async for key, name in _listed(store, launcher)
    ]


async def declared_profiles(store: Store, launcher: Launcher) -> dict[str, str]:
    """The launcher's id of a profile → its profile id in this fleet."""
    found: dict[str, str] = {}
    after: str | None = None
    while True:
        page = await store.find(Profile, {}, after=after, limit=1000)
        for profile in page.items:
            if profile.launcher_id == launcher.launcher_id and profile.launcher_profile is not None:
                found[profile.launcher_profile] = profile.profile_id
        after = page.after
        if after is None:
            return found


async def is_running(store: Store, launcher: Launcher, launcher_profile: str) -> tuple[bool | None, list[str]]:
    """Whether the profile runs now (None: the launcher cannot say), and its users, if the launcher lists them. Raises
    InputError if the launcher does not answer."""
    calls = LauncherCalls(await _described(launcher, launcher_profile))
    runs: bool | None = None
    users: list[str] = []
    try:
        if calls.has("status"):
            await wait_for_turn(store, launcher)
            runs = await run_in_thread(calls.running, CALL_SECONDS)
        if calls.has("users"):
            await wait_for_turn(store, launcher)
            users = await run_in_thread(calls.users, CALL_SECONDS)
    except CallFailed as error:
        raise await _call_error(store, launcher, error) from None
    return bool(users) or runs, users


async def _listed(store: Store, launcher: Launcher) -> AsyncIterator[tuple[str, str]]:
    described = await _described(launcher, "")
    step: dict[str, Any] = described.get("list") or {}
    calls = LauncherCalls(described)
    if not calls.has("list"):
        raise InputError(f"launcher {launcher.launcher_id} ({launcher.driver}) has no call that lists its profiles")
    size, seen = int(step.get("page_size") or 0), 0
    for page in range(1, MAX_PROFILES):
        await wait_for_turn(store, launcher)
        try:
            answer = await run_in_thread(calls.call, "list", CALL_SECONDS, {"page": page, "offset": seen})
        except CallFailed as error:
            raise await _call_error(store, launcher, error) from None
        items = answer.at(str(step["items"])) if step.get("items") else answer.body
        if not isinstance(items, list):
            raise InputError(f"launcher {launcher.launcher_id} did not list its profiles: {answer.text()}")
        for item in items:
            if isinstance(item, dict) and item.get(step["id"]) is not None:
                yield str(item[step["id"]]), str(item.get(step.get("name", "name")) or "")
        seen += len(items)
        if not size or len(items) < size or seen >= MAX_PROFILES:
            return


async def _described(launcher: Launcher, launcher_profile: str) -> dict[str, Any]:
    token = await run_in_thread(launcher_token, launcher)
    return describe(launcher, launcher_profile, headless=True, token=token)


async def _call_error(store: Store, launcher: Launcher, error: CallFailed) -> InputError:
    await note_refusal(store, launcher, error)
    return InputError(f"launcher {launcher.launcher_id}: {error}")
