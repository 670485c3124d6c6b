"""Asks a launcher whether a profile still runs, when its keeper cannot say any more, and stops a profile that does."""

import time
from collections.abc import Callable
from typing import Final

from leasekeeper.browsers.keeper.launcher_calls import LauncherCalls
from leasekeeper.browsers.launchers import confirm_seconds
from leasekeeper.core.launchers import LauncherSaid

CALL_SECONDS: Final = 5.0
# How often to ask. A browser that still runs is stopped, and asked about again after `AGAIN_SECONDS`.
ASKS: Final = 3
AGAIN_SECONDS: Final = 0.5


class NotOurs(Exception):
    """The lease is over: somebody else may use the profile now, so it was not stopped and the answer means nothing."""


def ask(description: dict[str, object], may_stop: Callable[[], bool] = lambda: True) -> LauncherSaid:
    """Ask the launcher about one profile, and stop it if it still runs. Blocking. Raises CallFailed.

    A stop names only the profile, whoever uses it: so `may_stop` is called first. Raises NotOurs if it returns False.
    """
    calls, confirm = LauncherCalls(description), confirm_seconds(description)

    def stop() -> None:
        if calls.has("stop"):
            if not may_stop():
                raise NotOurs
            calls.stop(CALL_SECONDS)

    if not calls.has("status"):
        stop()
        return LauncherSaid.CANNOT_SAY
    idle_since = 0.0
    for _ in range(ASKS):
        if calls.running(CALL_SECONDS):
            idle_since = 0.0
            stop()
            time.sleep(AGAIN_SECONDS)
            continue
        if not confirm or (idle_since and time.monotonic() - idle_since >= confirm):
            return LauncherSaid.IDLE
        idle_since = idle_since or time.monotonic()
        time.sleep(confirm)
    return LauncherSaid.RUNNING
