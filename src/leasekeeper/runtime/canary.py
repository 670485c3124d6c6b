"""Asks a login canary in a browser that is about to be closed: on a page of its own, in bounded time.

Selectors are evaluated in Playwright's own isolated world: the site's scripts neither see nor change the answer. A
failure (no network, an error of the site, a function that raises) counts as no answer, never as "logged out".
"""

import asyncio
import inspect
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from leasekeeper.core.canaries import Canary, canary_of, verdict_of
from leasekeeper.core.snapshots import Verdict
from leasekeeper.errors import safe_str

if TYPE_CHECKING:
    from leasekeeper.ports import Grant
    from leasekeeper.runtime.heartbeat import KeptLease
    from leasekeeper.runtime.opening import Opened

_LOG = logging.getLogger(__name__)

LOAD_SECONDS: Final = 8.0
SEEN_SECONDS: Final = 4.0
TOTAL_SECONDS: Final = 13.0
# The site refuses to answer (too many requests, a block, a timeout): it does not say who is logged in.
_REFUSALS: Final = (403, 408, 425, 429)
_SERVER_ERROR: Final = 500


async def verdict_at_end(
    opened: "Opened",
    grant: "Grant",
    kept: "KeptLease",
    registered: Canary | None = None,
    otherwise: Canary | None = None,
) -> Verdict:
    """Ask the canary whether the profile is still logged in; its browser is about to be closed. Raises nothing.

    The canary is the one that the task `registered`, else the account's from the fleet file, else `otherwise`. Returns
    NOT_ASKED if there is none, the lease is lost, the browser has ended, or its profile is a throwaway copy.
    """
    canary = registered or canary_of(grant.account) or otherwise
    if canary is None or opened.browser.over or opened.throwaway or kept.lost is not None:
        return Verdict.NOT_ASKED
    return verdict_of(await opened.session.ask(canary))


async def ask_async(context: Any, canary: Canary) -> bool | None:
    """Ask with Playwright's async API whether the profile is logged in. None: the canary gave no answer."""
    try:
        async with asyncio.timeout(TOTAL_SECONDS):
            page = await context.new_page()
            try:
                if canary.function is not None:
                    answer = canary.function(page)
                    return _as_answer(await answer if inspect.isawaitable(answer) else answer)
                response = await page.goto(canary.url, timeout=LOAD_SECONDS * 1000, wait_until="domcontentloaded")
                if _is_no_answer(response):
                    return None
                return await _seen(page, canary.selector or "")
            finally:
                with suppress(Exception):
                    await page.close()
    except Exception as error:  # noqa: BLE001 - canaries must not change how runs end
        _log(error)
        return None


async def _seen(page: Any, selector: str) -> bool:
    from playwright.async_api import TimeoutError as NotSeen

    try:
        await page.locator(selector).first.wait_for(state="visible", timeout=SEEN_SECONDS * 1000)
    except NotSeen:
        return False
    return True


def ask_sync(context: Any, canary: Canary) -> bool | None:
    """`ask_async` with Playwright's sync API: call it in the thread of the task."""
    from playwright.sync_api import TimeoutError as NotSeen

    try:
        page = context.new_page()
        try:
            if canary.function is not None:
                return _as_answer(canary.function(page))
            response = page.goto(canary.url, timeout=LOAD_SECONDS * 1000, wait_until="domcontentloaded")
            if _is_no_answer(response):
                return None
            try:
                page.locator(canary.selector or "").first.wait_for(state="visible", timeout=SEEN_SECONDS * 1000)
            except NotSeen:
                return False
            return True
        finally:
            with suppress(Exception):
                page.close()
    except Exception as error:  # noqa: BLE001 - as above
        _log(error)
        return None


def _is_no_answer(response: Any) -> bool:
    """Whether the response is not a page of the site: none, a refusal or a server error. 401 and 404 may be a login."""
    return response is None or response.status in _REFUSALS or response.status >= _SERVER_ERROR


def _as_answer(answer: object) -> bool | None:
    """What a function returned, if it is True or False; else None, also for a coroutine that was not awaited."""
    if inspect.iscoroutine(answer):
        answer.close()
    return answer if isinstance(answer, bool) else None


def _log(error: Exception) -> None:
    _LOG.warning(
        "the login canary could not be asked: %s: %s", type(error).__name__, safe_str(error).partition("\n")[0]
    )
