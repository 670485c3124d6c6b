"""What a launcher says of a profile whose keeper cannot say any more. A browser that still runs is stopped."""

import time
from collections.abc import Callable
from typing import Final

from leasekeeper.browsers.keeper.launcher_calls import LauncherCalls
from leasekeeper.browsers.launchers import confirm_seconds
from leasekeeper.core.launchers import LauncherSaid

CALL_SECONDS: Final = 5.0
# How often a browser that still runs is stopped and the launcher asked again, and how far apart.
ASKS: Final = 3
AGAIN_SECONDS: Final = 0.5


class NotOurs(Exception):
    """The profile may be somebody else's by now: nothing was stopped, and what the launcher says is about them."""


def ask(description: dict[str, object], may_stop: Callable[[], bool] = lambda: True) -> LauncherSaid:
    """What the launcher says about one profile. Stops one that still runs. Blocking. Raises CallFailed.

    A stop names only the profile, so `may_stop` is asked before each. Raises NotOurs if it says no.
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
