"""The launchers' local APIs as data, one file per vendor. `describe` builds from one what a keeper needs.

`keeper.launcher_calls` makes the calls. Placeholders in braces are replaced: `{profile}`, `{folder}`, `{headless}`,
`{token}`, `{place}` (host and port of the launcher's address). In an endpoint, `{a.b}` is the value at that path of the
answer.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

from leasekeeper.core.launchers import CDP, HTTP, Launcher

STEPS: Final = ("start", "stop", "status", "list", "plan", "users")


def vendor(driver: str) -> Mapping[str, Any]:
    """The description of this kind of launcher; empty for `http` and `cdp`, whose calls are in the fleet file."""
    if driver in (HTTP, CDP):
        return {}
    found: Mapping[str, Any] = import_module(f"leasekeeper.browsers.launchers.{driver}").LAUNCHER
    return found


def confirm_seconds(description: Mapping[str, Any]) -> float:
    """The time between the two answers that prove a profile idle; 0 if one answer is enough."""
    return float(description.get("confirm_seconds") or 0.0)


def describe(launcher: Launcher, profile: str, *, headless: bool, token: str | None) -> dict[str, Any]:
    """The calls and values to start, inspect and stop one profile. Contains the token: for the keeper's orders only."""
    found: dict[str, Any] = {**vendor(launcher.driver), **launcher.calls}
    url = str(launcher.url or found.get("url") or "http://127.0.0.1")
    values = {
        "profile": profile,
        "place": urlsplit(url).netloc,
        "folder": launcher.folder or "",
        "headless": headless,
        "headless_digit": "1" if headless else "0",
        "token": token or "",
    }
    return {
        **found,
        "url": url,
        "headers": found.get("headers") or ({"Authorization": f"Bearer {token}"} if token else {}),
        "values": values,
        "start_seconds": float(launcher.start_timeout_seconds),
    }
