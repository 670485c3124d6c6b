"""Playwright while a person has control: what keeps its view of the browser in order passes, what would act waits.

New pages wait until Playwright has prepared them, and requests until it has answered for a proxy or a route, so it
cannot be silenced altogether. Loaded when control passes for the first time.
"""

import json

# So much of what waits is kept. What comes after it is dropped: such a program does not wait for answers.
MAX_WAITING_BYTES = 4 * 1024 * 1024
_DOMAINS = ("Emulation.", "Fetch.", "Security.", "ServiceWorker.")
_PASSES = frozenset(
    {
        "Browser.getVersion",
        "Browser.getWindowForTarget",
        "Browser.setDownloadBehavior",
        "Browser.setWindowBounds",
        "Log.enable",
        "Network.enable",
        "Network.setBypassServiceWorker",
        "Network.setCacheDisabled",
        "Network.setExtraHTTPHeaders",
        "Page.addScriptToEvaluateOnNewDocument",
        "Page.createIsolatedWorld",
        "Page.enable",
        "Page.getFrameTree",
        "Page.setBypassCSP",
        "Page.setFontFamilies",
        "Page.setLifecycleEventsEnabled",
        "Performance.enable",
        "Runtime.addBinding",
        "Runtime.enable",
        "Runtime.releaseObject",
        "Runtime.runIfWaitingForDebugger",
        "Target.detachFromTarget",
        "Target.getTargetInfo",
        "Target.setAutoAttach",
        "Target.setDiscoverTargets",
    }
)


class PausedCommands:
    """Fed with what Playwright sends; gives back what may go on. `inside`: the browser has the beginning of a command,
    whose rest must follow."""

    def __init__(self, *, inside: bool) -> None:
        self._inside = inside
        self._partial = b""
        self._waiting: list[bytes] = []
        self._size = 0

    def split(self, piece: bytes) -> bytes:
        """What of the piece, and of what came before it, may go to the browser now."""
        passed = b""
        if self._inside:
            end = piece.find(b"\0") + 1
            if not end:
                return piece
            passed, piece, self._inside = piece[:end], piece[end:], False
        *commands, self._partial = (self._partial + piece).split(b"\0")
        return passed + b"".join(command + b"\0" for command in commands if self._passes(command))

    def _passes(self, command: bytes) -> bool:
        if may_pass(command):
            return True
        if self._size + len(command) <= MAX_WAITING_BYTES:
            self._waiting.append(command)
            self._size += len(command)
        return False

    def end(self) -> bytes:
        """What waited, in its order: the program has control again."""
        return b"".join(command + b"\0" for command in self._waiting) + self._partial


def may_pass(command: bytes) -> bool:
    """Whether a command only keeps its sender's view of the browser in order."""
    try:
        method = json.loads(command)["method"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return isinstance(method, str) and (method in _PASSES or method.startswith(_DOMAINS))
