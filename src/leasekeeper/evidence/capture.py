"""The last page of a run: final URL, screenshot, and the facts that detectors need.

Never raises for a page that is closed, crashed, hung or was never opened, and never takes longer than its timeout: a
run has to be able to end. The text of a page is read for detectors and never stored. Scripts run in an isolated world:
a page can change neither what they read there nor how long their results are.
"""

import asyncio
import base64
import json
import logging
import time
from collections.abc import Awaitable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from leasekeeper.core.classify import summary
from leasekeeper.core.detectors import PageFacts
from leasekeeper.evidence.recorder import Recorder
from leasekeeper.evidence.redact import Redactor

SCREENSHOT_SECONDS: Final = 10.0
INSPECT_SECONDS: Final = 5.0
MAX_TEXT: Final = 20_000
MAX_VALUE: Final = 200
RETRY_SECONDS: Final = 0.1
_MARGIN: Final = 0.4
# Errors of a browser that has not painted the page yet, or is about to show another one: retry a moment later.
_TEMPORARY: Final = ("Unable to capture screenshot", "Not attached to an active page")
_SCREENSHOT: Final = {"format": "png", "optimizeForSpeed": True}
_TEXT: Final = f"(document.body ? document.body.innerText : '').slice(0, {MAX_TEXT})"
_WORLD: Final = "leasekeeper"
# A time zone has several names. The browser reports the one it prefers; we report the configured one if it is the same
# zone. Without a configured one the UTC offset is enough: finding the name makes the page load a slow library.
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
    user_agent: navigator.userAgent.slice(0, 2000),
})"""
_NAMES: Final = ("language", "timezone", "window", "user_agent")

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """Final URL and screenshot of a run. `problem` says why there is no screenshot; empty if there is one."""

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
    """Capture the last page of an async context. The timeout is `seconds`, plus a small margin."""
    page, open_pages = _last_page(context, recorder, page)
    problem = _no_screenshot(page)
    shot: bytes | None = None
    if not problem:
        shot, problem = await _within(_screenshot(page), seconds + _MARGIN)
    return _captured(page, open_pages, shot, problem, redactor)


def capture_sync(
    context: Any,
    *,
    recorder: Recorder | None,
    redactor: Redactor,
    page: Any = None,
    seconds: float = SCREENSHOT_SECONDS,
) -> Captured:
    """The same for a context of the sync API, in its own thread. Only Playwright's own timeout applies."""
    page, open_pages = _last_page(context, recorder, page)
    problem = _no_screenshot(page)
    shot: bytes | None = None
    if not problem:
        shot, problem = _screenshot_sync(page, seconds)
    return _captured(page, open_pages, shot, problem, redactor)


def _last_page(context: Any, recorder: Recorder | None, page: Any) -> tuple[Any, int]:
    """The page that shows how the run ended: the task's own if it is open, else the newest open one, else the last."""
    try:
        open_pages = [each for each in context.pages if not each.is_closed()] if context is not None else []
    except Exception:  # noqa: BLE001 - without the Playwright process a context has no pages
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


async def _screenshot(page: Any) -> bytes:
    """A screenshot of the viewport, directly by CDP: that takes two thirds of the time of Playwright's own."""
    while True:
        # Never detached: during a navigation that would take as long as the navigation. The session ends with the page.
        session = await page.context.new_cdp_session(page)
        try:
            answer = await session.send("Page.captureScreenshot", _SCREENSHOT)
        except Exception as error:
            if not _is_temporary(error):
                raise
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return base64.b64decode(answer["data"])


def _is_temporary(error: Exception) -> bool:
    return any(text in str(error) for text in _TEMPORARY)


def _screenshot_sync(page: Any, seconds: float) -> tuple[bytes | None, str]:
    until = time.monotonic() + seconds
    while True:
        try:
            return page.screenshot(timeout=max(1.0, until - time.monotonic()) * 1000), ""
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the page, the run has to end
            if not _is_temporary(error) or time.monotonic() >= until:
                return None, _message(error)
        time.sleep(RETRY_SECONDS)


async def _within(asked: Awaitable[T], seconds: float) -> tuple[T | None, str]:
    """A response of the browser, or None and the reason. Playwright's own timeouts are not reliable enough."""
    try:
        async with asyncio.timeout(seconds):
            return await asked, ""
    except TimeoutError:
        return None, f"no response of the browser within {seconds:.1f} s"
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the page, the run has to end
        return None, _message(error)


def _message(error: Exception) -> str:
    return str(error) or type(error).__name__


Steps = Generator[tuple[str, dict[str, object]], Any, object]


def _evaluation(expression: str) -> Steps:
    """The CDP commands, one by one, that evaluate an expression in an isolated world of the main frame."""
    tree = yield "Page.getFrameTree", {}
    frame = tree["frameTree"]["frame"]["id"]
    world = yield "Page.createIsolatedWorld", {"frameId": frame, "worldName": _WORLD}
    asked = {"expression": expression, "contextId": world["executionContextId"], "returnByValue": True}
    answer = yield "Runtime.evaluate", asked
    return answer.get("result", {}).get("value")


async def _evaluate(page: Any, expression: str) -> object:
    session, steps = await page.context.new_cdp_session(page), _evaluation(expression)
    step = next(steps)
    while True:
        answer = await session.send(*step)
        try:
            step = steps.send(answer)
        except StopIteration as over:
            return over.value


def _evaluate_sync(page: Any, expression: str) -> object:
    session, steps = page.context.new_cdp_session(page), _evaluation(expression)
    step = next(steps)
    while True:
        answer = session.send(*step)
        try:
            step = steps.send(answer)
        except StopIteration as over:
            return over.value


async def inspect_page(
    page: Any, selectors: Iterable[str], *, with_text: bool = True, seconds: float = INSPECT_SECONDS
) -> PageFacts:
    """The facts about a page for detectors. What cannot be read before the timeout counts as absent."""
    if page is None:
        return PageFacts(url="")
    if page.is_closed():
        return PageFacts(url=page.url)
    visible: set[str] = set()
    text: list[str] = []

    async def ask() -> None:
        if with_text:
            text.append(str(await _evaluate(page, _TEXT) or ""))
        for selector in selectors:
            try:
                if await page.locator(selector).first.is_visible():
                    visible.add(selector)
            except Exception as error:  # noqa: BLE001 - one selector that cannot be read must not spoil the others
                _log_bad_selector(selector, error)

    await _within(ask(), seconds)
    return PageFacts(url=page.url, visible=frozenset(visible), text="".join(text))


def inspect_page_sync(page: Any, selectors: Iterable[str], *, with_text: bool = True) -> PageFacts:
    """The same for a page of the sync API. Has no timeout: call it only for pages that have responded."""
    if page is None or page.is_closed():
        return PageFacts(url=page.url if page is not None else "")
    visible: set[str] = set()
    text = ""
    if with_text:
        with suppress(Exception):
            text = str(_evaluate_sync(page, _TEXT) or "")
    for selector in selectors:
        try:
            if page.locator(selector).first.is_visible():
                visible.add(selector)
        except Exception as error:  # noqa: BLE001 - as above
            _log_bad_selector(selector, error)
    return PageFacts(url=page.url, visible=frozenset(visible), text=text)


def _log_bad_selector(selector: str, error: Exception) -> None:
    _LOG.warning("a detector's selector could not be checked: %s: %s", selector, summary(_message(error)))


async def read_environment(
    page: Any, timezone: str | None = None, *, redactor: Redactor, seconds: float = INSPECT_SECONDS
) -> dict[str, str]:
    """Language, time zone and window as pages see them, for the run's `actual_*`. Empty if the page does not answer.

    `timezone` is the configured name: it is returned if the page has the same time zone, else the page's own name.
    """
    seen, _ = await _within(_evaluate(page, _environment_script(timezone)), seconds)
    return _environment(seen, redactor)


def read_environment_sync(page: Any, timezone: str | None = None, *, redactor: Redactor) -> dict[str, str]:
    """The same for a page of the sync API. Has no timeout: call it just after the page was opened."""
    try:
        seen = _evaluate_sync(page, _environment_script(timezone))
    except Exception:  # noqa: BLE001 - whatever is wrong with the page, the run will find out
        return {}
    return _environment(seen, redactor)


def _environment_script(timezone: str | None) -> str:
    return f"({_ENVIRONMENT})({json.dumps(timezone)})"


def _environment(seen: object, redactor: Redactor) -> dict[str, str]:
    if not isinstance(seen, dict):
        return {}
    return {name: redactor.short(str(seen[name]), MAX_VALUE) for name in _NAMES if name in seen}
