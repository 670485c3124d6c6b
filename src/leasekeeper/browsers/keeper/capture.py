"""The keeper's own words to the browser, once nobody else may speak to it: where it is, how it looks, and goodbye.

Every wait has an end: a page that hangs or shows a dialog costs its screenshot at most, never the ending.
"""

import base64
import json
import os
import select

from leasekeeper.browsers.keeper.browser import Browser
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.pages import plain_url

FIRST_ID = 2_000_000_000  # far above any number that Playwright reaches
AGAIN_SECONDS = 0.1
MOST_ANSWER = 64 * 1024 * 1024
_READ = 1024 * 1024
_FRAME = b'{"method":"Page.screencastFrame"'


class Cdp:
    """Speaks to the browser directly. Answers to other people's questions are passed over."""

    def __init__(self, browser: Browser, broken_off: bool) -> None:
        self._browser = browser
        self._next_id = FIRST_ID
        self._unread = bytearray()
        self.frame: bytes | None = None
        self.ended = False
        # Half a command of the worker's is cut off: it becomes a line that means nothing, instead of ours.
        self._unsent = b"!\0" if broken_off else b""

    def send(self, method: str, params: dict[str, object] | None = None, session: str = "") -> int:
        """Say it as soon as the browser listens; returns the number its answer will carry."""
        self._next_id += 1
        message: dict[str, object] = {"id": self._next_id, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        self._unsent += json.dumps(message).encode() + b"\0"
        return self._next_id

    def ask(
        self, method: str, params: dict[str, object] | None = None, session: str = "", until: float = 0.0
    ) -> dict[str, object] | None:
        """The answer, or None if there was none in time or it was an error."""
        number = self.send(method, params, session)
        return self.answer(number, until)

    def answer(self, number: int, until: float) -> dict[str, object] | None:
        start = b'{"id":%d,' % number
        while not self.ended and boot_time() < until:
            for message in self.step(until):
                if message.startswith(start):
                    result = json.loads(message).get("result")
                    return result if isinstance(result, dict) else None
        return None

    def step(self, until: float) -> list[bytes]:
        """Write what waits, read what came, give up at `until`; also returns when the browser's process ends."""
        poll = select.poll()
        poll.register(self._browser.watch, select.POLLIN)
        if not self.ended:
            poll.register(self._browser.out, select.POLLIN)
            if self._unsent:
                poll.register(self._browser.to, select.POLLOUT)
        ready = dict(poll.poll(max(0.0, until - boot_time()) * 1000))
        if self._browser.to in ready:
            self._write()
        messages = self._read() if self._browser.out in ready else []
        if self._browser.watch in ready and self._browser.out not in ready:
            self.ended = True
        return messages

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._browser.to, self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = b""

    def _read(self) -> list[bytes]:
        try:
            piece = os.read(self._browser.out, _READ)
        except BlockingIOError:
            return []
        except OSError:
            piece = b""
        if not piece:
            self.ended = True
            return []
        if b"\0" not in piece:
            self._unread += piece
            if len(self._unread) > MOST_ANSWER:
                self._unread.clear()
            return []
        *messages, rest = (bytes(self._unread) + piece).split(b"\0")
        self._unread = bytearray(rest)
        for message in messages:
            if message.startswith(_FRAME):
                self.frame = message
        return messages


def capture(cdp: Cdp, last_used: str | None, until: float) -> tuple[str | None, bytes | None]:
    """The address of the page last used (or of the first there is) and its picture, as far as time allows."""
    page = _page(cdp.ask("Target.getTargets", until=until), last_used)
    if page is None:
        return None, None
    url = plain_url(str(page["url"]))
    attached = cdp.ask("Target.attachToTarget", {"targetId": page["targetId"], "flatten": True}, until=until)
    if attached is None:
        return url, None
    return url, _picture(cdp, str(attached["sessionId"]), until)


def _page(answer: dict[str, object] | None, last_used: str | None) -> dict[str, object] | None:
    targets = (answer or {}).get("targetInfos")
    pages = [item for item in targets if item.get("type") == "page"] if isinstance(targets, list) else []
    return next((page for page in pages if page["targetId"] == last_used), pages[0] if pages else None)


def _picture(cdp: Cdp, session: str, until: float) -> bytes | None:
    """A screenshot needs the page's help; a frame of a screencast does not, so it serves when the page hangs."""
    now = boot_time()
    patience = now + (until - now) * 0.6
    data: object = None
    while data is None and not cdp.ended and boot_time() < patience:
        # A browser that has not drawn the page yet answers with an error: a moment later it can.
        shot = cdp.ask("Page.captureScreenshot", {"format": "png"}, session, until=patience)
        data = (shot or {}).get("data")
        if data is None:
            cdp.step(min(boot_time() + AGAIN_SECONDS, patience))
    if data is None:
        cdp.send("Page.startScreencast", {"format": "png", "everyNthFrame": 1}, session)
        while cdp.frame is None and not cdp.ended and boot_time() < until:
            cdp.step(until)
        if cdp.frame is not None:
            data = json.loads(cdp.frame)["params"]["data"]
    return base64.b64decode(data) if isinstance(data, str) else None
