"""What the last page looked like: final URL, screenshot, and the facts that detectors ask for.

Never raises for a page that is closed, crashed, hung or was never opened, and never takes longer than its time:
a run has to be able to end. The text of a page is looked at for detectors and never stored.
"""

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from leasekeeper.core.classify import summary
from leasekeeper.core.detectors import PageFacts
from leasekeeper.evidence.recorder import Recorder
from leasekeeper.evidence.redact import Redactor

SCREENSHOT_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 5.0
MOST_TEXT: Final = 20_000
MOST_VALUE: Final = 200
AGAIN_SECONDS: Final = 0.1
_MARGIN: Final = 0.4
# What a busy browser says that has not drawn the page yet, or is about to show another: a moment later it can.
_NOT_YET: Final = ("Unable to capture screenshot", "Not attached to an active page")
_PICTURE: Final = {"format": "png", "optimizeForSpeed": True}
_TEXT: Final = f"() => (document.body ? document.body.innerText : '').slice(0, {MOST_TEXT})"
# A time zone has several names; the browser tells the one it prefers, people mean the one they wrote. Where nobody did,
# its offset will do: to find out a name makes the page load a library, which takes longer than all the rest.
_ENVIRONMENT: Final = """named => ({
    language: navigator.language,
    timezone: (() => {
        if (!named) {
            const east = -new Date().getTimezoneOffset(), two = number => String(number).padStart(2, '0');
            return `UTC${east < 0 ? '-' : '+'}${two(Math.trunc(Math.abs(east) / 60))}:${two(Math.abs(east) % 60)}`;
        }
        const seen = Intl.DateTimeFormat().resolvedOptions().timeZone;
        try {
            const same = new Intl.DateTimeFormat('en', {timeZone: named}).resolvedOptions().timeZone;
            return same === seen ? named : seen;
        } catch { return seen; }
    })(),
    window: `${window.innerWidth}x${window.innerHeight}`,
    user_agent: navigator.userAgent,
})"""
_NAMES: Final = ("language", "timezone", "window", "user_agent")

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The end of a run as seen in the browser. `problem` says why there is no screenshot; empty if there is one."""

    final_url: str | None = None
    screenshot: bytes | None = None
    problem: str = ""
    open_pages: int = 0


async def capture(
    context: Any,
    *,
    recorder: Recorder | None,
    redactor: Redactor,
    page: Any = None,
    seconds: float = SCREENSHOT_SECONDS,
) -> Captured:
    """Look at the last page of an async context. Takes at most `seconds` and a little."""
    page, open_pages = _last_page(context, recorder, page)
    problem = _no_screenshot(page)
    shot: bytes | None = None
    if not problem:
        shot, problem = await _within(_shoot(page), seconds + _MARGIN)
    return _captured(page, open_pages, shot, problem, redactor)


def capture_sync(
    context: Any,
    *,
    recorder: Recorder | None,
    redactor: Redactor,
    page: Any = None,
    seconds: float = SCREENSHOT_SECONDS,
) -> Captured:
    """The same for a context of the sync API, in its own thread. Only Playwright's own timeout guards it."""
    page, open_pages = _last_page(context, recorder, page)
    problem = _no_screenshot(page)
    shot: bytes | None = None
    if not problem:
        shot, problem = _shoot_sync(page, seconds)
    return _captured(page, open_pages, shot, problem, redactor)


def _last_page(context: Any, recorder: Recorder | None, page: Any) -> tuple[Any, int]:
    """The page that tells how the run ended: the task's own if it is open, else the newest open one, else the last."""
    try:
        open_pages = [each for each in context.pages if not each.is_closed()] if context is not None else []
    except Exception:  # noqa: BLE001 - without its driver a context has no pages
        open_pages = []
    if page is not None and (not open_pages or page in open_pages):
        return page, len(open_pages)
    if open_pages:
        return open_pages[-1], len(open_pages)
    return (recorder.last_page if recorder is not None else None), 0


def _no_screenshot(page: Any) -> str:
    if page is None:
        return "no page was open"
    return "the page was closed" if page.is_closed() else ""


def _captured(page: Any, open_pages: int, shot: bytes | None, problem: str, redactor: Redactor) -> Captured:
    url = redactor.url(page.url) if page is not None else None
    return Captured(final_url=url, screenshot=shot, problem=summary(problem, redactor.text), open_pages=open_pages)


async def _shoot(page: Any) -> bytes:
    """A picture of what is in the window. The browser is asked directly: that takes two thirds of Playwright's time."""
    while True:
        # Not detached: while a navigation is pending that takes as long as the navigation. It ends with the page.
        session = await page.context.new_cdp_session(page)
        try:
            answer = await session.send("Page.captureScreenshot", _PICTURE)
        except Exception as error:
            if not _may_do_better(error):
                raise
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            return base64.b64decode(answer["data"])


def _may_do_better(error: Exception) -> bool:
    return any(words in str(error) for words in _NOT_YET)


def _shoot_sync(page: Any, seconds: float) -> tuple[bytes | None, str]:
    until = time.monotonic() + seconds
    while True:
        try:
            return page.screenshot(timeout=max(1.0, until - time.monotonic()) * 1000), ""
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the page, the run has to end
            if not _may_do_better(error) or time.monotonic() >= until:
                return None, _words(error)
        time.sleep(AGAIN_SECONDS)


async def _within(asked: Awaitable[T], seconds: float) -> tuple[T | None, str]:
    """An answer of the browser, or None and why there is none. Playwright's own timeouts cannot be relied on alone."""
    try:
        async with asyncio.timeout(seconds):
            return await asked, ""
    except TimeoutError:
        return None, f"the browser gave no answer within {seconds:.1f} s"
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the page, the run has to end
        return None, _words(error)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


async def look(
    page: Any, selectors: Iterable[str], *, with_text: bool = True, seconds: float = LOOK_SECONDS
) -> PageFacts:
    """What detectors need to know of a page. What it does not tell in time counts as not seen."""
    if page is None:
        return PageFacts(url="")
    if page.is_closed():
        return PageFacts(url=page.url)
    visible: set[str] = set()
    text: list[str] = []

    async def ask() -> None:
        if with_text:
            text.append(str(await page.evaluate(_TEXT)))
        for selector in selectors:
            try:
                if await page.locator(selector).first.is_visible():
                    visible.add(selector)
            except Exception as error:  # noqa: BLE001 - one selector that cannot be read must not spoil the others
                _not_looked_for(selector, error)

    await _within(ask(), seconds)
    return PageFacts(url=page.url, visible=frozenset(visible), text="".join(text))


def look_sync(page: Any, selectors: Iterable[str], *, with_text: bool = True) -> PageFacts:
    """The same for a page of the sync API. A page whose scripts hang makes it hang: ask only pages that answered."""
    if page is None or page.is_closed():
        return PageFacts(url=page.url if page is not None else "")
    visible: set[str] = set()
    text = ""
    if with_text:
        with suppress(Exception):
            text = str(page.evaluate(_TEXT))
    for selector in selectors:
        try:
            if page.locator(selector).first.is_visible():
                visible.add(selector)
        except Exception as error:  # noqa: BLE001 - as above
            _not_looked_for(selector, error)
    return PageFacts(url=page.url, visible=frozenset(visible), text=text)


def _not_looked_for(selector: str, error: Exception) -> None:
    _LOG.warning("a detector's selector could not be looked for: %s: %s", selector, summary(_words(error)))


async def read_environment(
    page: Any, timezone: str | None = None, *, redactor: Redactor, seconds: float = LOOK_SECONDS
) -> dict[str, str]:
    """Language, time zone and window as pages see them, for the run's `actual_*`. Empty if the page does not answer.

    `timezone` is the one that was asked for: under that name it is told if it is the same, else under its own.
    """
    seen, _ = await _within(page.evaluate(_ENVIRONMENT, timezone), seconds)
    return _environment(seen, redactor)


def read_environment_sync(page: Any, timezone: str | None = None, *, redactor: Redactor) -> dict[str, str]:
    """The same for a page of the sync API, just after it was opened."""
    try:
        seen = page.evaluate(_ENVIRONMENT, timezone)
    except Exception:  # noqa: BLE001 - whatever is wrong with the page, the run will find out
        return {}
    return _environment(seen, redactor)


def _environment(seen: object, redactor: Redactor) -> dict[str, str]:
    """A site can make its page say anything of any length here."""
    if not isinstance(seen, dict):
        return {}
    return {name: redactor.short(str(seen[name]), MOST_VALUE) for name in _NAMES if name in seen}
