"""One driver under test, whichever it is: local Chromium, a browser behind a URL, or one of the launchers."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from leasekeeper.browsers.finding import find_browser
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.profiles import Profile
from tests.conformance.world import fleet, limit, profile
from tests.launchers.fake import FLAGS
from tests.launchers.stage import TOKEN, VENDORS, Fake, launched, launched_fleet, start_fake
from tests.runtime.browsing import processes_about

Test = TypeVar("Test", bound=Callable[..., Any])

LAUNCHERS = VENDORS
DRIVERS = ("local", "cdp", *LAUNCHERS)


@dataclass
class Stand:
    """`fake` is the launcher; the one of `cdp` only starts the browsers that are attached to."""

    driver: str
    folder: Path
    fake: Fake | None = None
    others: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def launcher(self) -> Fake:
        assert self.fake is not None
        return self.fake

    @property
    def environ(self) -> dict[str, str]:
        return {"LEASEKEEPER_DRIVERS": "local" if self.driver == "local" else "launcher"}

    def fleet(self, *ids: str, cap: int | None = None, start_seconds: int = 20, **fields: Any) -> Fleet:
        """Profiles of this driver. `cap`: the plan's, for all of them."""
        names = ids or ("p1",)
        limits = [] if cap is None else [limit("default", cap)]
        if self.driver == "local":
            return fleet(*(profile(name, **fields) for name in names), *limits)
        profiles = [self._launched(name, **fields) for name in names]
        record = replace(self.launcher.record, driver=self.driver, start_timeout_seconds=start_seconds, max_running=cap)
        return launched_fleet(record if self.driver == "http" else replace(record, calls={}), *profiles, *limits)

    def _launched(self, name: str, **fields: Any) -> Profile:
        if self.driver != "cdp":
            return launched(name, **fields)
        started = self.launcher.ask("/profile/start", {"profile_id": f"id-{name}", "headless": True}, token=TOKEN)
        return launched(name, launcher_profile=started["cdp_url"], **fields)

    @property
    def profiles(self) -> Path:
        return self.folder / "data" / "profiles" if self.fake is None else self.fake.folder

    def browsers(self) -> list[int]:
        return processes_about(f"--user-data-dir={self.profiles}")

    def crash(self) -> None:
        """Kill the browser, and not the keeper, which has the directory's name in its command line too."""
        for pid in self.browsers():
            with suppress(OSError):
                if b"leasekeeper" in (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"--user-data-dir")[0]:
                    continue
                os.kill(pid, signal.SIGKILL)

    def occupy(self, name: str = "p1") -> None:
        """Somebody else has the profile open."""
        if self.fake is not None:
            return self.fake.fault("start", "busy")
        directory = self.profiles / name
        directory.mkdir(parents=True, mode=0o700)
        command = [str(find_browser(None).path), *FLAGS, f"--user-data-dir={directory}", "about:blank"]
        self.others.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return None

    def leave(self) -> None:
        """They have gone."""
        for other in self.others:
            other.terminate()
            other.wait()
        self.others.clear()


@contextmanager
def standing(driver: str, folder: Path) -> Iterator[Stand]:
    fake = None if driver == "local" else start_fake("http" if driver == "cdp" else driver, folder / "launcher")
    stand = Stand(driver=driver, folder=folder, fake=fake)
    try:
        yield stand
    finally:
        stand.leave()
        if fake is not None:
            fake.end()


def over(drivers: tuple[str, ...], *daily: str) -> Callable[[Test], Test]:
    """Run a test over these drivers: every day over some, all before a release. What differs between them is data."""

    def mark(test: Test) -> Test:
        when = pytest.mark.release_if(when=lambda chosen: chosen["stand"] not in daily)
        marked: Test = pytest.mark.parametrize("stand", drivers, indirect=True)(when(test))
        return marked

    return mark
