"""Finds the browser to use: the setting, else Playwright's own Chromium, else `chromium`, else Google Chrome.

Runs only `BROWSER --version` (60 ms), once per file. Never uses the headless shell that Playwright prefers: it does not
lock its profile, so that two of them can corrupt one.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from leasekeeper.errors import BrowserNotFound

VERSION_SECONDS: Final = 20.0
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ADVICE: Final = (
    "install one (`playwright install chromium`, or your system's package `chromium`), "
    "or set LEASEKEEPER_BROWSER to the path of Chromium or Chrome"
)
_VERSION = re.compile(r"\b(\d{1,5})(?:\.\d+){1,3}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A browser that can be used: its path, where it was found, and its version."""

    path: Path
    source: str
    version: str

    @property
    def engine(self) -> int:
        """The major version, as profiles record it."""
        return int(self.version.partition(".")[0])


def find_browser(setting: str | None = None, environ: Mapping[str, str] | None = None) -> Found:
    """The browser to use. Raises BrowserNotFound if there is none, or if the setting names no program."""
    environ = os.environ if environ is None else environ
    if setting:
        path = _program(str(Path(setting).expanduser()), environ)
        if path is None:
            raise BrowserNotFound(f"the browser {setting} (setting LEASEKEEPER_BROWSER) is not a program; {ADVICE}")
        return Found(path=path, source="setting", version=version_of(path))
    own = playwright_chromium(environ)
    if own is not None:
        return Found(path=own, source="playwright", version=version_of(own))
    for name in PROGRAMS:
        path = _program(name, environ)
        if path is not None:
            return Found(path=path, source=name, version=version_of(path))
    raise BrowserNotFound(f"no browser found (searched for Playwright's own, {', '.join(PROGRAMS)}); {ADVICE}")


def _program(name: str, environ: Mapping[str, str]) -> Path | None:
    found = shutil.which(name, path=environ.get("PATH"))
    return Path(found).absolute() if found else None


def playwright_chromium(environ: Mapping[str, str]) -> Path | None:
    """The full Chromium that belongs to the installed Playwright, if it was downloaded."""
    spec = find_spec("playwright")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent / "driver" / "package"
    try:
        browsers = json.loads((package / "browsers.json").read_text(encoding="utf-8"))["browsers"]
        revision = next(str(each["revision"]) for each in browsers if each["name"] == "chromium")
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None
    place = environ.get("PLAYWRIGHT_BROWSERS_PATH")
    if place == "0":
        root = package / ".local-browsers"
    elif place:
        root = Path(place)
    else:
        home = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")
        root = Path(home) / "ms-playwright"
    programs = sorted(root.glob(f"chromium-{revision}/chrome-linux*/chrome"))
    return next((path for path in programs if os.access(path, os.X_OK)), None)


def version_of(path: Path) -> str:
    """The browser's version, such as 156.0.8078.79. Cached until the file changes, as an upgrade does."""
    try:
        facts = path.stat()
    except OSError as error:
        raise BrowserNotFound(f"the browser {path} cannot be read: {error.strerror}; {ADVICE}") from error
    return _ask_version(str(path), facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=64)
def _ask_version(path: str, _changed: int, _size: int) -> str:
    try:
        answer = subprocess.run(  # noqa: S603 - the browser that the user chose
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrowserNotFound(f"the browser {path} does not report its version: {error}; {ADVICE}") from error
    found = _VERSION.search(answer.stdout.decode(errors="replace"))
    if found is None:
        raise BrowserNotFound(f"{path} is not Chromium or Chrome: it does not report its version; {ADVICE}")
    return found[0]
