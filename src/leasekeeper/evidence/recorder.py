"""Records console errors and failed requests of a browser context: their number, and the first and last few.

It only handles events and never sends a command to the browser, so the same class works with the async and the sync
API. At a limit it stops listening: each event costs the Playwright process, which all runs of a worker share, some
kilobytes until the page is closed. Only what goes into the summary is redacted.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from leasekeeper.evidence.redact import Redactor, cut

KEPT_EACH_END: Final = 10
MAX_READ: Final = 4_000
MAX_KEPT: Final = 300
# The limits for each type of event: at either, the recorder stops listening to it.
MAX_EVENTS: Final = 2_000
MAX_EVENT_CHARACTERS: Final = 2_000_000
# The browser aborts the requests of a page that navigates away: that is not an error.
_ABORTED: Final = "net::ERR_ABORTED"
# Chromium writes this to the console for every response with status 400 or above. Listening to all responses instead
# would cost this process a millisecond for each.
_ERROR_RESPONSE: Final = "Failed to load resource: the server responded with a status of "


class _FirstAndLast:
    """Entries of one type: their number, and the first and last few of them, not redacted yet."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[dict[str, str]] = []
        self._last: deque[dict[str, str]] = deque(maxlen=KEPT_EACH_END)

    def keep(self, **entry: str) -> None:
        self.count += 1
        kept = self._first if len(self._first) < KEPT_EACH_END else self._last
        kept.append({name: value[:MAX_READ] for name, value in entry.items()})

    def redacted(self, redactor: Redactor) -> list[dict[str, str]]:
        return [
            {name: _redacted(redactor, name, entry[name]) for name in entry} for entry in (*self._first, *self._last)
        ]


class Recorder:
    """Attach it to a context as soon as that is open; `summary()` goes into the run's record."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._console = _FirstAndLast()
        self._failed = _FirstAndLast()
        self._refused = _FirstAndLast()
        self._warnings = 0
        self._aborted = 0
        self._crashes = 0
        self._counted: dict[str, tuple[int, int]] = {}
        self._context: Any = None
        self.last_page: Any = None
        self._handlers: dict[str, Callable[[Any], None]] = {
            "page": self._on_page,
            "console": self._on_console,
            "weberror": self._on_web_error,
            "requestfailed": self._on_request_failed,
        }

    @property
    def page_crashed(self) -> bool:
        """Whether any page of the context crashed so far."""
        return self._crashes > 0

    def attach(self, context: Any) -> None:
        """Start listening to a context (async or sync). Each run needs a recorder of its own."""
        self._context = context
        for event, handler in self._handlers.items():
            context.on(event, handler)
        for page in context.pages:
            self._on_page(page)

    def detach(self) -> None:
        """Stop listening: the browser goes on under another run. Harmless if it is closed already."""
        context, self._context = self._context, None
        if context is not None:
            for event, handler in self._handlers.items():
                context.remove_listener(event, handler)

    def summary(self) -> dict[str, object]:
        """Counts and the first and last entries, as plain JSON types."""
        return {
            "console": {
                "errors": self._console.count,
                "warnings": self._warnings,
                "entries": self._console.redacted(self._redactor),
                **self._limit_reached("console", "weberror"),
            },
            "network": {
                "failed": self._failed.count,
                "given_up": self._aborted,
                "error_answers": self._refused.count,
                "entries": [*self._failed.redacted(self._redactor), *self._refused.redacted(self._redactor)],
                **self._limit_reached("requestfailed"),
            },
            "pages_crashed": self._crashes,
        }

    def _limit_reached(self, *events: str) -> dict[str, bool]:
        """Set if there may have been more events than were counted."""
        return {"limit_reached": True} if any(map(self._at_limit, events)) else {}

    def _at_limit(self, event: str) -> bool:
        events, characters = self._counted.get(event, (0, 0))
        return events >= MAX_EVENTS or characters >= MAX_EVENT_CHARACTERS

    def _count_event(self, event: str, size: int) -> bool:
        """Count an event, and stop listening at the limit. False if the limit was reached before this event."""
        if self._at_limit(event):
            return False
        events, characters = self._counted.get(event, (0, 0))
        self._counted[event] = (events + 1, characters + size)
        if self._at_limit(event) and self._context is not None:
            self._context.remove_listener(event, self._handlers.pop(event))
        return True

    def _on_page(self, page: Any) -> None:
        self.last_page = page
        page.on("crash", self._on_crash)

    def _on_crash(self, _page: Any) -> None:
        self._crashes += 1

    def _on_console(self, message: Any) -> None:
        text = message.text
        if not self._count_event("console", len(text)):
            return
        if message.type == "error" and text.startswith(_ERROR_RESPONSE):
            status = text.removeprefix(_ERROR_RESPONSE)[:3]
            self._refused.keep(url=_location(message), problem=f"status {status}")
        elif message.type == "error":
            self._console.keep(text=text, at=_location(message))
        elif message.type == "warning":
            self._warnings += 1

    def _on_web_error(self, event: Any) -> None:
        text = f"uncaught: {event.error}"
        if self._count_event("weberror", len(text)):
            self._console.keep(text=text, at="")

    def _on_request_failed(self, request: Any) -> None:
        problem = str(request.failure or "unknown")
        if not self._count_event("requestfailed", len(request.url) + len(request.method)):
            return
        if _ABORTED in problem:
            self._aborted += 1
            return
        self._failed.keep(method=request.method, url=request.url, problem=problem)


def _redacted(redactor: Redactor, name: str, value: str) -> str:
    return cut(redactor.url(value) if name in ("url", "at") else redactor.text(value), MAX_KEPT)


def _location(message: Any) -> str:
    location = message.location
    return str(location.get("url", "")) if isinstance(location, dict) else ""
