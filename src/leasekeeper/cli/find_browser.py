"""The browser that commands will use, or an error that says what to install."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasekeeper.browsers.finding import Found


def installed_browser(setting: str | None = None) -> "Found":
    """The browser of the setting, else of this machine. Raises InputError if it or Playwright is missing."""
    from importlib.util import find_spec

    from leasekeeper.browsers.finding import find_browser
    from leasekeeper.errors import NoPlaywright
    from leasekeeper.runtime.playwright_process import NO_PLAYWRIGHT

    if find_spec("playwright") is None:
        raise NoPlaywright(NO_PLAYWRIGHT)
    return find_browser(setting or os.environ.get("LEASEKEEPER_BROWSER"))
