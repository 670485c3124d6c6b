"""Filters Playwright's commands while a person has control: those that would act wait, the others pass.

Not all commands may wait: a new page waits until Playwright has prepared it, and a request may wait for its proxy login
or its route. Loaded when control passes for the first time.
"""

import json

# The limit of what waits. Commands beyond it are dropped: a program that sends so many does not wait for answers.
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
    """Splits Playwright's commands into those that pass now and those that wait.

    `inside`: a command is partly written to the browser already, so its rest must pass.
    """

    def __init__(self, *, inside: bool) -> None:
        self._inside = inside
        self._partial = b""
        self._waiting: list[bytes] = []
        self._size = 0

    def split(self, piece: bytes) -> bytes:
        """Take the next bytes from Playwright. Returns the commands that may go to the browser now."""
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
        """The commands that waited, in their order: Playwright has control again."""
        return b"".join(command + b"\0" for command in self._waiting) + self._partial


def may_pass(command: bytes) -> bool:
    """Whether a command does not act, but only keeps Playwright's state consistent."""
    try:
        method = json.loads(command)["method"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return isinstance(method, str) and (method in _PASSES or method.startswith(_DOMAINS))
