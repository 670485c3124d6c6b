"""Launch options for a program that opens the profile's browser itself under a direct lease: all the profile declares.

Such a browser has no keeper: the program closes it. What a worker checks before a launch is checked here too: the
driver, the browser's version, the proxy's credentials and, if a probe is configured, its exit.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from leasekeeper.browsers.finding import Found, find_browser
from leasekeeper.browsers.launching import launch_options
from leasekeeper.config import BrowserConfig
from leasekeeper.core.browsers import Credentials, has_directory
from leasekeeper.core.failures import Reason
from leasekeeper.core.jobs import RunMode
from leasekeeper.errors import Fail
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime.proxy_check import ProxyCheck
from leasekeeper.threads import run_in_thread

# Options for workers only: a worker handles signals itself, a program leaves them to Playwright.
_WORKERS_OWN: Final = ("handle_sigint", "handle_sigterm", "handle_sighup")


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectLaunch:
    """What a launch needs besides the directory, already checked."""

    grant: Grant
    browser: Found
    credentials: Credentials | None
    proxy_seen: str
    proxy_region: str
    args: tuple[str, ...]

    def options(self, directory: Path, *, headless: bool) -> dict[str, Any]:
        """The keyword arguments for `launch_persistent_context`."""
        options = launch_options(
            self.grant.profile,
            directory=directory,
            executable=self.browser.path,
            run_mode=RunMode.HEADLESS if headless else RunMode.VISIBLE,
            environ=os.environ,
            root=os.geteuid() == 0,
            proxy=self.grant.proxy,
            credentials=self.credentials,
            extra_args=self.args,
        )
        return {name: value for name, value in options.items() if name not in _WORKERS_OWN}

    def actual(self, *, headless: bool) -> dict[str, str]:
        """The actual environment, for the run's record."""
        mode = RunMode.HEADLESS if headless else RunMode.VISIBLE
        seen = {"proxy": self.proxy_seen, "proxy_region": self.proxy_region} if self.proxy_seen else {}
        return {"browser": self.browser.version, "run_mode": mode.value, **seen}


async def prepare_launch(
    store: Store, grant: Grant, config: BrowserConfig, redactor: Redactor, args: Sequence[str] = ()
) -> DirectLaunch:
    """Find the browser, read the proxy's credentials and probe its exit. Touches no directory.

    Raises Fail if the profile must not be opened now, InputError if this machine cannot open it, LeaseLost.
    """
    profile = grant.profile
    if not has_directory(profile.driver):
        raise Fail(
            Reason.ACTION_NOT_ALLOWED,
            f"profile {profile.profile_id} is opened by driver {profile.driver}, not in a directory here: it has no "
            "launch options",
        )
    browser = await run_in_thread(find_browser, config.browser)
    checks = ProxyCheck(store, config.probe_url, config.secrets, redactor)
    credentials = await checks.credentials(grant)
    probed = await checks.probe_before_launch(grant.proxy, credentials)
    return DirectLaunch(
        grant=grant,
        browser=browser,
        credentials=credentials,
        proxy_seen=probed.seen if probed is not None else "",
        proxy_region=probed.region if probed is not None else "",
        args=(*config.browser_args, *args),
    )
