"""What the worker was doing and where: the last commands, and which page each session belongs to.

Learnt from the traffic that passes, a few bytes per message; only events about targets and navigation are
read in full. No payload is kept, and addresses lose user names, queries and fragments before they are stored.
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
# What a new page is prepared with does not count as using it.
_USES = ("Input.", "DOM.", "Page.navigate", "Page.reload", "Page.captureScreenshot", "Runtime.callFunctionOn")


class Pages:
    """Fed with both directions of the pipe."""

    def __init__(self) -> None:
        self.to_browser = Messages(self.on_command)
        self.from_browser = Messages(self._on_event)
        self.commands: deque[tuple[float, str, str]] = deque(maxlen=MAX_COMMANDS)
        self.asked_to_close = False
        self.visited = False  # whether any page was somewhere that can store something
        self._used: dict[str, None] = {}
        self._targets: dict[str, str] = {}
        self._urls: dict[str, str] = {}

    @property
    def last_used(self) -> str | None:
        """The page that was used last, of those that are open."""
        return next(reversed(self._used), None)

    @property
    def last_url(self) -> str | None:
        """Where the page last used was when it was last heard of."""
        if self.last_used is not None and self.last_used in self._urls:
            return self._urls[self.last_used]
        return next(reversed(self._urls.values()), None)

    def on_command(self, begin: bytes, end: bytes) -> None:
        """A command was sent: its first bytes (all, or some) and its last."""
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
            self._learn(event["method"], event["params"], event.get("sessionId"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return

    def _learn(self, method: str, params: dict[str, object], session: str | None) -> None:
        if method == "Target.attachedToTarget":
            self._attach(params["targetInfo"], params["sessionId"], session)  # type: ignore[arg-type] # checked there
        elif method == "Target.detachedFromTarget":
            self._detach(str(params["sessionId"]))
        elif method == "Target.targetInfoChanged":
            info = params["targetInfo"]
            if isinstance(info, dict) and str(info["targetId"]) in self._urls:
                self._at(str(info["targetId"]), str(info["url"]))
        elif method == "Page.frameNavigated":
            frame = params["frame"]
            if isinstance(frame, dict) and str(frame["id"]) in self._urls:
                self._at(str(frame["id"]), str(frame["url"]))
        elif method == "Page.navigatedWithinDocument" and str(params["frameId"]) in self._urls:
            self._at(str(params["frameId"]), str(params["url"]))

    def _at(self, target: str, url: str) -> None:
        self._urls[target] = plain_url(url)
        self.visited = self.visited or not is_empty(url)

    def _detach(self, session: str) -> None:
        """A page that was closed is forgotten, but never the last one: where it was is the final address."""
        target = self._targets.pop(session, "")
        closed = target in self._urls and target not in self._targets.values()
        if closed and len(self._urls) > 1 and not self.asked_to_close:
            del self._urls[target]
            self._used.pop(target, None)

    def _attach(self, info: dict[str, object], session: str, parent: str | None) -> None:
        """A frame or a worker of a page has a session too: it counts as its page."""
        if len(self._targets) >= MAX_TARGETS or len(self._urls) >= MAX_TARGETS:
            return
        target = str(info["targetId"])
        if info["type"] == "page":
            self._at(target, str(info["url"]))
        elif parent is not None and parent in self._targets:
            target = self._targets[parent]
        self._targets[str(session)] = target


def plain_url(url: str) -> str:
    """An address as it may be shown: no user name, no query, no fragment, no inline content."""
    for scheme in ("data:", "javascript:"):
        before, found, _ = url.lower().partition(scheme)
        if found and (not before or before == "view-source:"):
            return before + scheme
    for mark in ("?", "#"):
        url = url.partition(mark)[0]
    scheme, slashes, rest = url.partition("://")  # the scheme may be of two parts: blob:https
    host, slash, path = rest.partition("/")
    path = "/".join(part.partition(";")[0] for part in path.split("/"))  # ;jsessionid=… is a key to the session
    return (scheme + slashes + host.rpartition("@")[2] + slash + path)[:MAX_URL]


def is_empty(url: str) -> bool:
    """Whether this is the address of no site: nothing is stored there."""
    return not url or url.startswith("about:")


def session_of(end: bytes) -> str | None:
    """The session that a message is for: Playwright and the browser write it last."""
    _, found, value = end.rpartition(_SESSION)
    if not found or not value.endswith(b'"}') or value.count(b'"') != 1:
        return None
    return value[:-2].decode(errors="replace")
