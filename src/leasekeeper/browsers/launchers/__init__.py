"""Launchers, one file each: the calls of its local API, as data. `describe` makes of one what a keeper needs.

Read `keeper.launcher_calls` for how a description is carried out. A text in braces is filled in: `{profile}`,
`{folder}`, `{headless}`, `{token}`, `{place}` (host and port of its address), or, in an endpoint, whatever the answer
has at that path.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlsplit

from leasekeeper.core.launchers import CDP, HTTP, Launcher

STEPS: Final = ("start", "stop", "status", "list", "plan", "users")


def vendor(driver: str) -> Mapping[str, Any]:
    """The description of a launcher of this kind; empty for those that bring their own."""
    if driver in (HTTP, CDP):
        return {}
    found: Mapping[str, Any] = import_module(f"leasekeeper.browsers.launchers.{driver}").LAUNCHER
    return found


def confirm_seconds(description: Mapping[str, Any]) -> float:
    """How far apart the two answers must be that prove a profile idle; 0: one is enough."""
    return float(description.get("confirm_seconds") or 0.0)


def describe(launcher: Launcher, profile: str, *, headless: bool, token: str | None) -> dict[str, Any]:
    """Everything that is needed to start, inspect and stop one profile. Holds the token: for orders and memory only."""
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
