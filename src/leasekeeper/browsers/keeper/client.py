"""One further DevTools client of the browser: its socket, the commands it may send, and its unread messages.

It connects through the worker: the keeper connects to the worker's socket, and listens nowhere itself. A client that
sends something else than DevTools commands, or does not read, is disconnected; no other client is affected.
"""

import json
import os
from collections import deque

from leasekeeper.browsers.keeper.fast_imports import sockets
from leasekeeper.browsers.keeper.internal_pages import may_open

MAX_COMMAND_BYTES = 32 * 1024 * 1024
MAX_UNREAD_BYTES = 16 * 1024 * 1024
MAX_WAITING_COMMANDS = 64
MAX_UNANSWERED = 10_000
MAX_DEPTH = 200  # Chromium reads 300 levels, and does not answer deeper commands
_PIECE = 256 * 1024
_MAX_ID = 2**53

_ONE_CONTEXT = "a session works inside its profile: use the context that is there (contexts()[0]), not a new one"
OWN_PAGE = "the browser's own pages (settings, extensions, DevTools) are not for sessions"
REFUSED = {
    "Target.createBrowserContext": _ONE_CONTEXT,
    "Target.disposeBrowserContext": _ONE_CONTEXT,
    "Target.exposeDevToolsProtocol": "a page may not speak DevTools: that would leave the session's lease",
    "Target.openDevTools": OWN_PAGE,
    "Target.sendMessageToTarget": "use flat sessions (flatten: true)",
    "Target.setRemoteLocations": "a session stays in its own browser",
    "Browser.crash": "a session may not crash the browser; release it instead",
    "Browser.getBrowserCommandLine": "how the browser was started is not shown to sessions",
    "SystemInfo.getInfo": "how the browser was started is not shown to sessions",
}
REFUSED_DOMAINS = {
    "Extensions.": "a session may not load or change extensions: they belong to the profile",
    "PWA.": "a session may not install or open apps: they belong to the profile",
    "Tethering.": "a session may not open ports",
}
_GOES_TO_URL = frozenset({"Page.navigate", "Target.createTarget"})


class BadMessage(Exception):
    """A client sent something that is not a DevTools command; the text says why. The client is disconnected."""


class Command:
    """A command of a client. `session` is empty for the browser itself."""

    def __init__(self, number: int, method: str, params: object, session: str) -> None:
        self.number = number
        self.method = method
        self.params = params
        self.session = session

    @property
    def refused(self) -> str:
        """Why a client may not send this command; empty if it may."""
        if self.method in REFUSED:
            return REFUSED[self.method]
        if self.method in _GOES_TO_URL and isinstance(self.params, dict) and not may_open(self.params.get("url")):
            return OWN_PAGE
        domain = self.method.partition(".")[0] + "."
        return REFUSED_DOMAINS.get(domain, "")

    def as_bytes(self, number: int, session: str) -> bytes:
        """The command for the browser, with another id and session. Encoded anew, not copied from the client's text."""
        message: dict[str, object] = {"id": number, "method": self.method}
        if self.params is not None:
            message["params"] = self.params
        message["sessionId"] = session
        return json.dumps(message, separators=(",", ":")).encode() + b"\0"


class Client:
    """A connected client. `session` is its browser session, empty until the browser has given it one."""

    def __init__(self, name: str, connection: "sockets.socket") -> None:
        self.name = name
        self.session = ""
        self.sessions: set[str] = set()
        self.commands: deque[Command] = deque()
        self.unanswered = 0
        self.gone = False
        self.descriptor = connection.fileno()
        self._socket = connection
        self._unread = bytearray()
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._written = 0

    @property
    def wants(self) -> tuple[bool, bool]:
        """Whether to wait until its socket is readable, and until it is writable."""
        busy = len(self.commands) >= MAX_WAITING_COMMANDS or self.unanswered >= MAX_UNANSWERED
        return not busy, bool(self._outbox)

    def read(self) -> None:
        """Read commands from the socket. Raises BadMessage, or EOFError once the client has closed the connection."""
        try:
            piece = self._socket.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            raise EOFError from None
        if not piece:
            raise EOFError
        start = 0
        while (end := piece.find(b"\0", start)) >= 0:
            self._unread += piece[start:end]
            self.commands.append(parse_command(bytes(self._unread)))
            self._unread.clear()
            start = end + 1
        self._unread += piece[start:]
        if len(self._unread) > MAX_COMMAND_BYTES:
            raise BadMessage(f"a command is longer than {MAX_COMMAND_BYTES:,} bytes")

    def put(self, *parts: bytes) -> bool:
        """Queue one message. Returns False if the client has stopped reading: then it must be disconnected."""
        size = sum(len(part) for part in parts) + 1
        if self._outbox and self._outbox_bytes + size > MAX_UNREAD_BYTES:
            return False
        self._outbox.extend((*parts, b"\0"))
        self._outbox_bytes += size
        return True

    def write(self) -> None:
        """Write queued messages, without waiting. Raises EOFError if the client has closed the connection."""
        while self._outbox:
            first = memoryview(self._outbox[0])[self._written :]
            try:
                written = self._socket.send(first, sockets.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                raise EOFError from None
            self._outbox_bytes -= written
            self._written += written
            if self._written == len(self._outbox[0]):
                self._outbox.popleft()
                self._written = 0

    def close(self) -> None:
        """Disconnect it. Its queued messages and commands are dropped."""
        self.gone = True
        self.commands.clear()
        self._outbox.clear()
        self._unread.clear()
        self._socket.close()


def dial(name: str, worker_pid: int) -> Client:
    """Connect to the socket that the worker opened for this client. Raises OSError; never waits."""
    connection = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(b"\0" + name.encode())
        if _peer(connection) != (worker_pid, os.geteuid()):
            raise PermissionError(f"{name} is not the worker's socket")
    except BaseException:
        connection.close()
        raise
    return Client(name, connection)


def _peer(connection: "sockets.socket") -> tuple[int, int]:
    raw = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, 12)
    return int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:8], "little")


def parse_command(raw: bytes) -> Command:
    """Parse a client's DevTools command. Raises BadMessage that says what is wrong with it."""
    try:
        found = json.loads(raw.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"not JSON: {type(error).__name__}") from None
    if not isinstance(found, dict):
        raise BadMessage("a command is a JSON object")
    number, method, session = found.get("id"), found.get("method"), found.get("sessionId", "")
    if isinstance(number, bool) or not isinstance(number, int) or not -_MAX_ID < number < _MAX_ID:
        raise BadMessage("a command needs a whole number as its id")
    if not isinstance(method, str) or not method or not isinstance(session, str):
        raise BadMessage("a command needs a method, and a sessionId only as text")
    params = found.get("params")
    if params is not None and not isinstance(params, dict):
        raise BadMessage("params must be an object")
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _depth(params) > MAX_DEPTH:
        raise BadMessage(f"params are nested more than {MAX_DEPTH} levels deep")
    return Command(number, method, params, session)


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _depth(value: object) -> int:
    """The nesting depth of a value; stops counting above the limit."""
    level: list[object] = [value]
    depth = 0
    while level and depth <= MAX_DEPTH:
        depth += 1
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        level = inner
    return depth
