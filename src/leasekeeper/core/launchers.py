"""Launchers: programs of others that keep profiles and open their browsers, as a fleet file declares them.

What a launcher's API looks like is in `browsers.launchers`; here is what is declared, and which kinds there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from leasekeeper.core.ids import LauncherId
from leasekeeper.errors import nearest

HTTP: Final = "http"
CDP: Final = "cdp"
VENDORS: Final[Mapping[str, str]] = {
    "multilogin": "Multilogin X",
    "adspower": "AdsPower",
    "gologin": "GoLogin (desktop)",
    "dolphin": "Dolphin{anty}",
    "kameleo": "Kameleo",
    HTTP: "a launcher with an HTTP API, described by `calls`",
    CDP: "a browser that runs already, reached at a DevTools URL",
}
# What each needs beside its address: a missing one would be found at the first start only.
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {"multilogin": ("folder", "api_token"), HTTP: ("url", "calls")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """One launcher. `api_token` is a reference (`env:NAME`, `file:PATH`), never the secret.

    `url` is where its API is (None: where the vendor has it), `folder` a vendor's workspace folder, `calls` the
    description of an API of driver `http`. `max_running` is what the plan allows at once; `calls_per_minute` what the
    API allows, shared by all workers of the store.
    """

    launcher_id: LauncherId
    driver: str
    url: str | None = None
    api_token: str | None = None
    folder: str | None = None
    max_running: int | None = None
    calls_per_minute: int | None = None
    start_timeout_seconds: int = 90
    calls: Mapping[str, object] = field(default_factory=dict)


def vendor_fault(name: str) -> str | None:
    """What is wrong with the driver of a launcher; None if there is such a one."""
    if name in VENDORS:
        return None
    near = nearest(name, VENDORS)
    return f"no driver {name}; there are: {', '.join(VENDORS)}" + (f"; did you mean {near}?" if near else "")


def missing_settings(launcher: Launcher) -> tuple[str, ...]:
    """What a launcher of this kind needs and was not given."""
    return tuple(name.removeprefix("api_") for name in NEEDS.get(launcher.driver, ()) if not getattr(launcher, name))


def spacing(launcher: Launcher) -> timedelta:
    """How far apart two calls to the launcher must be, whoever makes them; zero: it has no limit."""
    return timedelta(minutes=1) / launcher.calls_per_minute if launcher.calls_per_minute else timedelta()


def next_turn(
    now: datetime, next_at: datetime | None, spacing: timedelta, pause: timedelta
) -> tuple[datetime, datetime]:
    """When this call may be made, and when the next one after it. `pause`: the API wants none before that."""
    turn = max(now + pause, next_at or now)
    return turn, turn if pause else turn + spacing
