"""Turns a storage state into a user data directory, with a browser of its own beside the profile's directory.

Nothing leaves the machine: every address is answered here, with an empty page, and no name is resolved. An import that
is interrupted leaves a directory that nobody opens.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from leasekeeper.browsers.finding import Found
from leasekeeper.browsers.launching import launch_options
from leasekeeper.config import BrowserConfig
from leasekeeper.core.ids import AccountId, ProfileId
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import InputError, LeasekeeperError
from leasekeeper.runtime.playwright_process import PlaywrightProcess
from leasekeeper.snapshots.storage_state import StorageState
from leasekeeper.snapshots.trimming import trim
from leasekeeper.threads import run_in_thread

_NOWHERE: Final = "--host-resolver-rules=MAP * ~NOTFOUND"
_STORE: Final = "items => { for (const [name, value] of items) localStorage.setItem(name, value) }"


async def make_directory(
    target: Path, state: StorageState, browser: Found, config: BrowserConfig, on_done: Callable[[int], None]
) -> None:
    """Make `target`, a new directory, with this state in it. `on_done` is called with the number of cookies and origins
    that were just stored, and may raise. Playwright stores a state with IndexedDB as a whole.

    Raises InputError for what the browser does not take; its message says which, and no value.
    """
    playwright = PlaywrightProcess(await run_in_thread(Path(config.data_dir).absolute))
    try:
        driver = await playwright.get()
        context = await driver.chromium.launch_persistent_context(**_options(target, browser, config))
        try:
            await context.route("**/*", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
            await _fill(context, state, on_done)
        finally:
            await context.close()
    except LeasekeeperError:
        raise
    except Exception as error:  # noqa: BLE001 - Playwright raises what it likes, and may repeat what it was given
        raise InputError(f"the browser did not take the storage state: {type(error).__name__}") from None
    finally:
        await playwright.stop()
    await run_in_thread(trim, target)


def _options(target: Path, browser: Found, config: BrowserConfig) -> dict[str, Any]:
    return launch_options(
        Profile(profile_id=ProfileId("import"), account_id=AccountId("import")),
        directory=target,
        executable=browser.path,
        run_mode=RunMode.HEADLESS,
        environ=os.environ,
        root=os.geteuid() == 0,
        extra_args=(*config.browser_args, _NOWHERE),
    )


async def _fill(context: Any, state: StorageState, on_done: Callable[[int], None]) -> None:
    if state.databases:
        if not hasattr(context, "set_storage_state"):
            raise InputError("the storage state has more than cookies and localStorage: a newer Playwright is needed")
        await context.set_storage_state({"cookies": list(state.cookies), "origins": list(state.origins)})
        on_done(len(state))
        return
    for cookie in state.cookies:
        await _taken(context.add_cookies([cookie]), f"cookie {cookie['name']} of {cookie['domain']}")
        on_done(1)
    page = context.pages[0] if context.pages else await context.new_page()
    for origin in state.origins:
        await _taken(_store(page, origin), f"the localStorage of {origin['origin']}")
        on_done(1)
    await page.goto("about:blank")


async def _store(page: Any, origin: Any) -> None:
    await page.goto(origin["origin"])
    items = [(item["name"], item["value"]) for item in origin.get("localStorage", [])]
    await page.evaluate(_STORE, items)


async def _taken(work: Any, what: str) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001 - as above
        raise InputError(f"the browser did not take {what}: {type(error).__name__}") from None
