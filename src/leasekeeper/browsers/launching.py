"""How a profile's browser is started: a profile, its proxy and a run mode in, Playwright's launch arguments out.

Pure. The browser gets the whole environment of the profile and nothing of the worker's: no
secrets of its environment, no proxy of the machine, no debugging port. Passwords never reach a command line.
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

# Quiet: no traffic of the browser's own. `--restore-last-session` keeps session cookies over a clean close; the
# keeper deletes the tabs that it would bring back.
QUIET: Final = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-quic",
    "--restore-last-session",
)
# A directory may hold several profiles and open the one that was used last; what is inspected and sealed is this one.
_FOLDER: Final = "--profile-directory=Default"
# Playwright says `--headless`, which before version 132 meant another browser without a lock of its own.
_HEADLESS: Final = ("--headless=new", "--disable-gpu")

# Each would go around the lease, the profile's environment or the proof of its close.
_RESERVED: Final = (
    "--",  # whatever comes after it is not an argument any more: neither the directory nor the pipe
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

# What a browser needs of the worker's environment. Everything else stays behind: passwords above all.
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
    """The keyword arguments for `launch_persistent_context`. Raises InputError if the profile cannot be opened so.

    `environ` is the worker's environment, `extra_env` what the keeper needs on top; `root` is whether the worker
    runs as root, where Chromium cannot sandbox itself.
    """
    _refuse_reserved(extra_args)
    options: dict[str, Any] = {
        "user_data_dir": str(directory),
        "executable_path": str(executable),
        "headless": run_mode is RunMode.HEADLESS,
        "chromium_sandbox": not root,
        "timeout": LAUNCH_SECONDS * 1000,
        # The worker decides what a signal means: it wants its evidence before the browser goes.
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
    """What of the worker's environment a browser gets."""
    return {name: value for name, value in environ.items() if _PASSED.fullmatch(name)}


def _environment(profile: Profile, environ: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    kept = passed_environment(environ)
    if profile.timezone:
        kept["TZ"] = profile.timezone
    return {**kept, **extra}


def _window(profile: Profile, run_mode: RunMode) -> dict[str, Any]:
    """A headless page has exactly the size; a visible window has it outside, and its page follows the person's hand."""
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
