"""Tracks pages and commands in the relayed traffic: the last commands, each page's address, each session's page.

Reads a few bytes per message, and only events about targets and navigation in full. Keeps no payloads, and removes
user names, queries and fragments from addresses before it stores them.
"""

import json
import time
from collections import deque

from leasekeeper.browsers.keeper.relay import BEGINNING, Messages

MAX_COMMANDS = 50
MAX_TARGETS = 5000
MAX_URL = 2000
_EVENTS = (b'{"method":"Target.', b'{"method":"Page.frameNavigated"', b'{"method":"Page.navigatedWithinDocument"')
_METHOD = b'"method":"'
_SESSION = b'"sessionId":"'
# Only these commands count as using a page, not those that prepare a new one.
_USES = ("Input.", "DOM.", "Page.navigate", "Page.reload", "Page.captureScreenshot", "Runtime.callFunctionOn")


class Pages:
    """Feed `to_browser` and `from_browser` with the bytes of each direction."""

    def __init__(self) -> None:
        self.to_browser = Messages(self.on_command)
        self.from_browser = Messages(self._on_event)
        self.commands: deque[tuple[float, str, str]] = deque(maxlen=MAX_COMMANDS)
        self.asked_to_close = False
        self.visited = False  # whether any page was at an address that can store something
        self._used: dict[str, None] = {}
        self._targets: dict[str, str] = {}
        self._urls: dict[str, str] = {}

    @property
    def last_used(self) -> str | None:
        """The open page that was used last, as its target id."""
        return next(reversed(self._used), None)

    @property
    def last_url(self) -> str | None:
        """The last known address of the page last used, else of the newest page."""
        if self.last_used is not None and self.last_used in self._urls:
            return self._urls[self.last_used]
        return next(reversed(self._urls.values()), None)

    def on_command(self, begin: bytes, end: bytes) -> None:
        """Record a command from its first bytes (all or some) and its last."""
        method = begin[:200].partition(_METHOD)[2].partition(b'"')[0].decode(errors="replace")
        if method == "Browser.close":
            self.asked_to_close = True
        session, target = session_of(end), None
        if session is not None:
            target = self._targets.get(session)
            if target is not None and method.startswith(_USES):
                self._used.pop(target, None)
                self._used[target] = None
        self.commands.append((time.time(), method, self._urls.get(target, "") if target is not None else ""))

    def _on_event(self, begin: bytes, _end: bytes) -> None:
        if not begin.startswith(_EVENTS) or len(begin) >= BEGINNING:
            return
        try:
            event = json.loads(begin)
            self._apply(event["method"], event["params"], event.get("sessionId"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return

    def _apply(self, method: str, params: dict[str, object], session: str | None) -> None:
        if method == "Target.attachedToTarget":
            self._attach(params["targetInfo"], params["sessionId"], session)  # type: ignore[arg-type] # checked there
        elif method == "Target.detachedFromTarget":
            self._detach(str(params["sessionId"]))
        elif method == "Target.targetInfoChanged":
            info = params["targetInfo"]
            if isinstance(info, dict) and str(info["targetId"]) in self._urls:
                self._set_url(str(info["targetId"]), str(info["url"]))
        elif method == "Page.frameNavigated":
            frame = params["frame"]
            if isinstance(frame, dict) and str(frame["id"]) in self._urls:
                self._set_url(str(frame["id"]), str(frame["url"]))
        elif method == "Page.navigatedWithinDocument" and str(params["frameId"]) in self._urls:
            self._set_url(str(params["frameId"]), str(params["url"]))

    def _set_url(self, target: str, url: str) -> None:
        self._urls[target] = plain_url(url)
        self.visited = self.visited or not is_empty(url)

    def _detach(self, session: str) -> None:
        """Forget a page that was closed, but never the last one: its address is the final URL."""
        target = self._targets.pop(session, "")
        closed = target in self._urls and target not in self._targets.values()
        if closed and len(self._urls) > 1 and not self.asked_to_close:
            del self._urls[target]
            self._used.pop(target, None)

    def _attach(self, info: dict[str, object], session: str, parent: str | None) -> None:
        """Record which page a new session belongs to. Sessions of frames and workers belong to their page."""
        if len(self._targets) >= MAX_TARGETS or len(self._urls) >= MAX_TARGETS:
            return
        target = str(info["targetId"])
        if info["type"] == "page":
            self._set_url(target, str(info["url"]))
        elif parent is not None and parent in self._targets:
            target = self._targets[parent]
        self._targets[str(session)] = target


def plain_url(url: str) -> str:
    """The address without secrets: no user name, query, fragment or inline content."""
    for scheme in ("data:", "javascript:"):
        before, found, _ = url.lower().partition(scheme)
        if found and (not before or before == "view-source:"):
            return before + scheme
    for mark in ("?", "#"):
        url = url.partition(mark)[0]
    scheme, slashes, rest = url.partition("://")  # the scheme may have two parts: blob:https
    host, slash, path = rest.partition("/")
    path = "/".join(part.partition(";")[0] for part in path.split("/"))  # ;jsessionid=… is a secret
    return (scheme + slashes + host.rpartition("@")[2] + slash + path)[:MAX_URL]


def is_empty(url: str) -> bool:
    """Whether the address is empty or `about:`, where a page cannot store anything."""
    return not url or url.startswith("about:")


def session_of(end: bytes) -> str | None:
    """The session of a message, from its last bytes; None if it has none. Playwright and Chromium write it last."""
    _, found, value = end.rpartition(_SESSION)
    if not found or not value.endswith(b'"}') or value.count(b'"') != 1:
        return None
    return value[:-2].decode(errors="replace")
