"""Playwright's launch arguments for a profile, its proxy and a run mode.

Pure. The browser gets the profile's settings and only a few of the worker's environment variables: no secrets, no proxy
of the machine. It opens no debugging port. Passwords never reach a command line.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from leasekeeper.core.accounts import Proxy
from leasekeeper.core.browsers import Credentials
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import InputError, Problem

LAUNCH_SECONDS: Final = 30.0

# The browser sends no traffic of its own. `--restore-last-session` keeps session cookies after a clean close; the
# keeper deletes the tabs that it would restore.
QUIET: Final = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-quic",
    "--restore-last-session",
)
# A user data directory may hold several profiles, and Chromium opens the last used one. We check and seal only this.
_FOLDER: Final = "--profile-directory=Default"
# Playwright passes `--headless`. Before version 132 that was another browser, which does not lock its profile.
_HEADLESS: Final = ("--headless=new", "--disable-gpu")

# Each would go around the lease, the profile's environment or the proof of its close.
_RESERVED: Final = (
    "--",  # Chromium ignores the flags after it, also those for the directory and the pipe
    "--remote-debugging-port",
    "--remote-debugging-pipe",
    "--remote-debugging-address",
    "--remote-debugging-io-pipes",
    "--user-data-dir",
    "--profile-directory",
    "--proxy-server",
    "--proxy-pac-url",
    "--no-proxy-server",
    "--headless",
    "--incognito",
    "--no-startup-window",
)

# The environment variables that a browser gets from its worker. No others, since they may hold passwords.
_PASSED: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TMPDIR|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|XDG_\w+"
    r"|DBUS_SESSION_BUS_ADDRESS|FONTCONFIG_\w+|LD_LIBRARY_PATH|CHROME_DEVEL_SANDBOX|PULSE_SERVER|TZDIR"
)
_WINDOW = re.compile(r"([1-9][0-9]{1,4})x([1-9][0-9]{1,4})")


def launch_options(
    profile: Profile,
    *,
    directory: Path,
    executable: Path,
    run_mode: RunMode,
    environ: Mapping[str, str],
    root: bool,
    proxy: Proxy | None = None,
    credentials: Credentials | None = None,
    extra_env: Mapping[str, str] | None = None,
    extra_args: Sequence[str] = (),
    downloads: Path | None = None,
) -> dict[str, Any]:
    """The keyword arguments for `launch_persistent_context`. Raises InputError for settings that Chromium cannot use.

    `environ` is the worker's environment, `extra_env` is added for the keeper. `root`: the worker runs as root, where
    Chromium's sandbox does not work.
    """
    _refuse_reserved(extra_args)
    options: dict[str, Any] = {
        "user_data_dir": str(directory),
        "executable_path": str(executable),
        "headless": run_mode is RunMode.HEADLESS,
        "chromium_sandbox": not root,
        "timeout": LAUNCH_SECONDS * 1000,
        # The worker handles signals itself: it takes evidence before the browser closes.
        "handle_sigint": False,
        "handle_sigterm": False,
        "handle_sighup": False,
        "env": _environment(profile, environ, extra_env or {}),
        "args": [*QUIET, _FOLDER, *(_HEADLESS if run_mode is RunMode.HEADLESS else ()), *extra_args],
        **_window(profile, run_mode),
    }
    if profile.language:
        options["locale"] = profile.language
        options["args"].append(f"--accept-lang={profile.language}")
    if profile.timezone:
        options["timezone_id"] = profile.timezone
    if proxy is not None:
        options["proxy"] = _proxy(proxy, credentials)
    if downloads is not None:
        options["downloads_path"] = str(downloads)
    if profile.window:
        options["args"].append("--window-size=" + profile.window.replace("x", ","))
    return options


def _refuse_reserved(args: Sequence[str]) -> None:
    wrong = [arg for arg in args if not arg.startswith("--") or arg.partition("=")[0] in _RESERVED]
    if wrong:
        raise InputError(
            "these arguments for the browser are not possible",
            [Problem(arg.partition("=")[0], "is set by Leasekeeper or would go around it") for arg in wrong],
        )


def passed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The worker's environment variables that a browser gets."""
    return {name: value for name, value in environ.items() if _PASSED.fullmatch(name)}


def _environment(profile: Profile, environ: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    kept = passed_environment(environ)
    if profile.timezone:
        kept["TZ"] = profile.timezone
    return {**kept, **extra}


def _window(profile: Profile, run_mode: RunMode) -> dict[str, Any]:
    """The page size. Headless: a fixed viewport. Visible: none, so that the page resizes with its window."""
    if run_mode is RunMode.VISIBLE:
        return {"no_viewport": True}
    if profile.window is None:
        return {}
    size = _WINDOW.fullmatch(profile.window)
    if size is None:
        raise InputError(f"profile {profile.profile_id}: window {profile.window!r} must be a size as 1280x800")
    return {"viewport": {"width": int(size[1]), "height": int(size[2])}}


def _proxy(proxy: Proxy, credentials: Credentials | None) -> dict[str, str]:
    if credentials is None:
        return {"server": proxy.server}
    if urlsplit(proxy.server).scheme.startswith("socks"):
        raise InputError(
            f"proxy {proxy.proxy_id}: Chromium cannot log in to a SOCKS proxy; use its http port, or no password"
        )
    return {"server": proxy.server, "username": credentials.username, "password": credentials.password}
