"""A small recorder on a browser context: console errors and failed requests, counted, with the first and last few.

Listens only: it reads what Playwright already holds and never asks the browser, so the same class serves the async
and the sync API. Memory is bounded whatever the page does, and every entry is redacted before it is kept.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from leasekeeper.evidence.redact import Redactor, cut

KEPT_EACH_END: Final = 10
MOST_READ: Final = 4_000
MOST_KEPT: Final = 300
# The browser gives up requests of a page that moves on; that is no fault of anybody.
_GIVEN_UP: Final = "net::ERR_ABORTED"
# What Chromium writes to the console for every answer of 400 and above. To listen to all answers instead would cost a
# busy page a millisecond of this process for each.
_ERROR_ANSWER: Final = "Failed to load resource: the server responded with a status of "


class _Ends:
    """Entries of one sort: how many there were, and the first and last few of them."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[dict[str, str]] = []
        self._last: deque[dict[str, str]] = deque(maxlen=KEPT_EACH_END)

    def keep(self, entry: dict[str, str]) -> None:
        self.count += 1
        kept = self._first if len(self._first) < KEPT_EACH_END else self._last
        kept.append(entry)

    def entries(self) -> list[dict[str, str]]:
        return [*self._first, *self._last]


class Recorder:
    """Attach one to a context as soon as it is open; `summary()` is what goes into the run's record."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._console = _Ends()
        self._failed = _Ends()
        self._refused = _Ends()
        self._warnings = 0
        self._given_up = 0
        self._crashes = 0
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
        """Listen to a context (async or sync). A context of the next run needs a recorder of its own."""
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
                "entries": self._console.entries(),
            },
            "network": {
                "failed": self._failed.count,
                "given_up": self._given_up,
                "error_answers": self._refused.count,
                "entries": [*self._failed.entries(), *self._refused.entries()],
            },
            "pages_crashed": self._crashes,
        }

    def _text(self, text: str) -> str:
        return cut(self._redactor.text(text[:MOST_READ]), MOST_KEPT)

    def _url(self, url: str) -> str:
        return cut(self._redactor.url(url[:MOST_READ]), MOST_KEPT)

    def _on_page(self, page: Any) -> None:
        self.last_page = page
        page.on("crash", self._on_crash)

    def _on_crash(self, _page: Any) -> None:
        self._crashes += 1

    def _on_console(self, message: Any) -> None:
        if message.type == "error" and message.text.startswith(_ERROR_ANSWER):
            status = message.text.removeprefix(_ERROR_ANSWER)[:3]
            self._refused.keep({"url": self._url(_place(message)), "problem": f"status {status}"})
        elif message.type == "error":
            self._console.keep({"text": self._text(message.text), "at": self._url(_place(message))})
        elif message.type == "warning":
            self._warnings += 1

    def _on_web_error(self, event: Any) -> None:
        self._console.keep({"text": self._text(f"uncaught: {event.error}"), "at": ""})

    def _on_request_failed(self, request: Any) -> None:
        problem = str(request.failure or "unknown")
        if _GIVEN_UP in problem:
            self._given_up += 1
            return
        method = self._text(request.method)
        self._failed.keep({"method": method, "url": self._url(request.url), "problem": self._text(problem)})


def _place(message: Any) -> str:
    location = message.location
    return str(location.get("url", "")) if isinstance(location, dict) else ""
