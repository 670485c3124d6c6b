"""The keeper's own DevTools commands at the end, when no client may send any: final URL, screenshot, close.

Every wait has a deadline: if a page hangs or shows a dialog, only its screenshot may be missing.
"""

import base64
import json
import select

from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.pages import plain_url
from leasekeeper.browsers.keeper.reached import ReachedBrowser

FIRST_ID = 2_000_000_000  # far above any number that Playwright reaches
AGAIN_SECONDS = 0.1
MAX_ANSWER = 64 * 1024 * 1024
_READ = 1024 * 1024
_FRAME = b'{"method":"Page.screencastFrame"'


class Cdp:
    """Sends commands to the browser directly. Ignores answers to other clients' commands.

    `broken_off`: the last command to the browser was only partly written. `inside`: the browser's last message was only
    partly read.
    """

    def __init__(self, browser: ReachedBrowser, *, broken_off: bool, inside: bool) -> None:
        self._browser = browser
        self._next_id = FIRST_ID
        self._unread = bytearray()
        self._skipping = inside
        self.frame: bytes | None = None
        self.ended = False
        self._unsent = browser.break_off() if broken_off else b""

    def send(self, method: str, params: dict[str, object] | None = None, session: str = "") -> int:
        """Queue a command; `step` writes it. Returns its id, which the answer will have."""
        self._next_id += 1
        message: dict[str, object] = {"id": self._next_id, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        self._unsent += json.dumps(message).encode() + b"\0"
        return self._next_id

    def ask(
        self, method: str, params: dict[str, object] | None = None, session: str = "", until: float = 0.0
    ) -> dict[str, object] | None:
        """Send a command and wait. Returns its result; None for an error, or no answer by `until`."""
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
        """Wait for the browser, but not after `until` or its end; write queued commands. Returns the messages read."""
        to, out, watch = self._browser.to.descriptor, self._browser.out.descriptor, self._browser.watch
        wanted = {watch: select.POLLIN}
        if not self.ended:
            wanted[out] = select.POLLIN
            if self._unsent:
                wanted[to] = wanted.get(to, 0) | select.POLLOUT
        poll = select.poll()
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        ready = dict(poll.poll(max(0.0, until - boot_time()) * 1000))
        if to in ready:
            written = self._browser.to.write(self._unsent)
            self._unsent = self._unsent[written:] if written >= 0 else b""
        messages = self._read() if out in ready else []
        if watch in ready and out not in ready:
            self.ended = True
        return messages

    def _read(self) -> list[bytes]:
        piece = self._browser.out.read(_READ)
        if piece is None:
            return []
        if not piece:
            self.ended = True
            return []
        if self._skipping:
            _, found, piece = piece.partition(b"\0")
            self._skipping = not found
        *messages, rest = piece.split(b"\0")
        if messages:
            messages[0] = bytes(self._unread) + messages[0]
            self._unread.clear()
        self._unread += rest
        if len(self._unread) > MAX_ANSWER:
            self._unread.clear()
            self._skipping = True
        for message in messages:
            if message.startswith(_FRAME):
                self.frame = message
        return messages


def capture(cdp: Cdp, last_used: str | None, until: float) -> tuple[str | None, bytes | None]:
    """The address and a screenshot of the page last used, else of the first page. None for what was not possible in
    time."""
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
    """Take a screenshot. If that fails, take a frame of a screencast, which also works while the page hangs."""
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
