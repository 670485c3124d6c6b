"""Launchers: programs of vendors that keep profiles and open their browsers, as a fleet file declares them.

Their APIs are in `browsers.launchers`; here is what is declared, and which kinds of launchers there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

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
# Settings that a driver needs beside its URL. Unchecked, a missing one would be found at the first start only.
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {"multilogin": ("folder", "api_token"), HTTP: ("url", "calls")}
# Calls per minute if the fleet file sets none, for vendors that publish their lowest limit: AdsPower 2 per second,
# GoLogin 300 per minute (one call too many ends the token for good), Kameleo 60 starts per minute, where a start is one
# call of four.
USUAL_CALLS_PER_MINUTE: Final[Mapping[str, int]] = {"adspower": 120, "gologin": 240, "kameleo": 240}
# Host names that stand for the machine itself, some of them vendors' own.
_OWN_NAMES: Final = frozenset({"localhost", "local.adspower.net", "launcher.mlx.yt"})
# The placeholder for the launcher's token in a description or a DevTools URL.
TOKEN_HOLE: Final = "{token}"  # noqa: S105 - this place
# The clauses that a keeper proves by asking the launcher, beside those that it checks itself.
LAUNCHER_CLAUSES: Final = ("launcher_stopped", "launcher_idle")
# The shortest and the longest delay until a launcher that did not answer is asked again.
ASK_AGAIN_FIRST: Final = timedelta(seconds=2)
ASK_AGAIN_LAST: Final = timedelta(minutes=5)


class LauncherSaid(StrEnum):
    """What a launcher said about a profile when it was asked after the run."""

    NOT_ASKED = ""
    SILENT = "silent"
    IDLE = "idle"
    RUNNING = "running"
    CANNOT_SAY = "cannot_say"


# Why a browser is not proven dead, going by what the launcher said.
NOT_DEAD: Final = {
    LauncherSaid.RUNNING: "its launcher says that the profile still runs",
    LauncherSaid.CANNOT_SAY: "its launcher cannot say that the browser has ended",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """One launcher. `api_token` is a reference (`env:NAME`, `file:PATH`), never the secret.

    `url` is where its API is (None: where the vendor has it), `folder` a vendor's workspace folder, `calls` the
    description of an API of driver `http`. `max_running` is what the plan allows at once; `calls_per_minute` what the
    API allows, shared by all workers of the store (None: `USUAL_CALLS_PER_MINUTE`).
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
    """What is wrong with the name of a launcher's driver; None if there is such a driver."""
    if name in VENDORS:
        return None
    near = nearest(name, VENDORS)
    return f"no driver {name}; there are: {', '.join(VENDORS)}" + (f"; did you mean {near}?" if near else "")


def missing_settings(launcher: Launcher) -> tuple[str, ...]:
    """The settings that a launcher of this driver needs and does not have."""
    return tuple(name.removeprefix("api_") for name in NEEDS.get(launcher.driver, ()) if not getattr(launcher, name))


def stop_missing(launcher: Launcher) -> bool:
    """Whether the description has a call that starts browsers and none that stops them."""
    return launcher.driver in (HTTP, CDP) and "start" in launcher.calls and "stop" not in launcher.calls


def spacing(launcher: Launcher) -> timedelta:
    """The minimum time between two calls to the launcher, by all callers together; zero: it has no limit."""
    calls = launcher.calls_per_minute or USUAL_CALLS_PER_MINUTE.get(launcher.driver)
    return timedelta(minutes=1) / calls if calls else timedelta()


def next_turn(
    now: datetime, next_at: datetime | None, spacing: timedelta, pause: timedelta
) -> tuple[datetime, datetime]:
    """When this call may be made, and when the next one after it. `pause`: the API asked for no calls for this long."""
    turn = max(now + pause, next_at or now)
    return turn, turn if pause else turn + spacing


def is_on_machine(launcher: Launcher) -> bool:
    """Whether the launcher runs on the worker's own machine: another machine would reach another launcher."""
    if launcher.url is None:
        return True  # the default of the vendors' programs
    host = urlsplit(launcher.url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in _OWN_NAMES or host.endswith(".localhost")


def can_be_asked_from(launcher: Launcher, ran_on: str | None, machine: str | None) -> bool:
    """Whether this machine reaches the launcher that a run on `ran_on` used."""
    return not is_on_machine(launcher) or (machine is not None and machine == ran_on)


def in_doubt(evidence: Mapping[str, object]) -> bool:
    """Whether a run's keeper could not find out from the launcher that its browser has ended."""
    keeper = evidence.get("keeper")
    clauses = keeper.get("clauses") if isinstance(keeper, Mapping) else None
    return isinstance(clauses, Mapping) and any(clauses.get(name) is False for name in LAUNCHER_CLAUSES)


def must_answer_first(said: LauncherSaid, *, in_doubt: bool, early: bool) -> bool:
    """Whether a lost run must not be resolved before its launcher said whether the browser still runs.

    While it is `early` (lock-delay and TTL) that holds for every launcher that has not said IDLE or CANNOT_SAY: a
    keeper may still be stopping it, and the machine that can ask need not be the one that sweeps first. Later it holds
    for one that is silent, or was not asked though its keeper was `in_doubt`.
    """
    if said in (LauncherSaid.IDLE, LauncherSaid.CANNOT_SAY):
        return False
    return early or said is LauncherSaid.SILENT or (in_doubt and said is LauncherSaid.NOT_ASKED)


def may_be_asked(token: int, last_token: int, ask_at: datetime | None, now: datetime) -> bool:
    """Whether the launcher of a lost lease may be asked now, and told to stop the profile. False if the profile was
    granted again since, as a stop names only the profile, or while another caller asks."""
    return token == last_token and (ask_at is None or ask_at <= now)


def start_over_at(ended_at: datetime, start_timeout_seconds: int) -> datetime:
    """When a start that a lost run left under way is over: until then a profile that is idle may still start."""
    return ended_at + timedelta(seconds=start_timeout_seconds)


def ask_again_at(ended_at: datetime, now: datetime) -> datetime:
    """When to ask a silent launcher again: after half the time that the run has been over, so later and later."""
    return now + min(max((now - ended_at) / 2, ASK_AGAIN_FIRST), ASK_AGAIN_LAST)
