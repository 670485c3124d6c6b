"""Asks launchers for `leasekeeper doctor`: one call each, in its turn. Starts and stops no profile."""

import socket
from typing import Any, Final
from urllib.parse import urlsplit

from leasekeeper.browsers.keeper.launcher_calls import CallFailed, LauncherCalls
from leasekeeper.browsers.launchers import describe
from leasekeeper.core.accounts import Limit
from leasekeeper.core.doctor.launcher_checks import LauncherFacts
from leasekeeper.core.launchers import CDP, Launcher
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import InputError
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Store
from leasekeeper.runtime.fleet_facts import read_all
from leasekeeper.runtime.launchers import launcher_token, note_refusal, wait_for_turn
from leasekeeper.threads import run_in_thread

CALL_SECONDS: Final = 10.0


async def launcher_facts(store: Store) -> list[LauncherFacts]:
    """Every launcher of the fleet, asked once."""
    launchers = await read_all(store, Launcher)
    if not launchers:
        return []
    limits = {limit.pool: limit.max_leases for limit in await read_all(store, Limit)}
    profiles = [each for each in await read_all(store, Profile) if each.launcher_id is not None]
    return [
        await _ask(store, launcher, [each for each in profiles if each.launcher_id == launcher.launcher_id], limits)
        for launcher in launchers
    ]


async def _ask(
    store: Store, launcher: Launcher, profiles: list[Profile], limits: dict[str, int]
) -> LauncherFacts:  # fmt: skip
    known: dict[str, Any] = {
        "launcher_id": launcher.launcher_id,
        "max_running": launcher.max_running,
        "limits": {each.pool: limits.get(each.pool) for each in profiles},
    }
    if launcher.driver == CDP:
        return LauncherFacts(asked=False, **known)
    token: str | None = None
    try:
        token = await run_in_thread(launcher_token, launcher)
        await wait_for_turn(store, launcher)
        name = (profiles[0].launcher_profile if profiles else None) or "none"
        plan = await run_in_thread(_one_call, describe(launcher, name, headless=True, token=token))
    except InputError as error:
        return LauncherFacts(problem=error.message, **known)
    except (CallFailed, OSError) as error:
        if isinstance(error, CallFailed):
            await note_refusal(store, launcher, error)
        problem = str(error) if isinstance(error, CallFailed) else f"{launcher.url}: {error.strerror or error}"
        return LauncherFacts(problem=Redactor((token,) if token else ()).text(problem), **known)
    return LauncherFacts(plan=plan, **known)


def _one_call(description: dict[str, Any]) -> int | None:
    """Make one call. Returns how many browsers the plan allows, if the launcher says it. Raises CallFailed or OSError
    if it does not answer."""
    calls = LauncherCalls(description)
    if calls.has("plan"):
        return calls.plan(CALL_SECONDS)
    if calls.has("status"):
        calls.running(CALL_SECONDS)
        return None
    parts = urlsplit(str(description["url"]))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    socket.create_connection((parts.hostname or "", port), CALL_SECONDS).close()
    return None
