"""Shares one browser connection between several clients: routes answers and events, and sends commands in turn.

Playwright, which launched the browser, uses the connection itself. Every further client has a browser session of its
own inside it, and its page sessions below that. Command ids are rewritten; the browser's messages say which session
belongs to whom. Loaded when the first client connects: until then Playwright's bytes are relayed unchanged.
"""

import json
from collections import deque
from collections.abc import Callable

from leasekeeper.browsers.keeper.client import OWN_PAGE, BadMessage, Client, Command, dial
from leasekeeper.browsers.keeper.fast_imports import to_json
from leasekeeper.browsers.keeper.internal_pages import is_own_page, passes_there
from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper.pages import Pages, session_of
from leasekeeper.browsers.keeper.reached import Channel

# Above any number that Playwright reaches, below the keeper's own at the end (`capture.FIRST_ID`).
FIRST_ID = 1_000_000_000
LAST_ID = 1_999_999_999
MAX_CLIENTS = 16
MAX_LEFT_SESSIONS = 100_000
_TAIL = 128
_ATTACHED, _DETACHED = b'{"method":"Target.attachedToTarget"', b'{"method":"Target.detachedFromTarget"'
_GIVES_SESSION = frozenset({"Target.attachToTarget", "Target.attachToBrowserTarget"})


class Asked:
    """A command that waits for its answer. `client` None: the keeper's own command; its answer is ignored."""

    __slots__ = ("client", "method", "number", "session")

    def __init__(self, client: Client | None, method: str, number: int | None = None, session: str = "") -> None:
        self.client = client
        self.method = method
        self.number = number
        self.session = session


class Sharing:
    """All clients except Playwright. `report` sends a message to the worker.

    `inside`: so many bytes of a message for Playwright came from the browser before there was a client.
    """

    def __init__(
        self, orders: Orders, pages: Pages, report: Callable[[dict[str, str | int | float]], None], *, inside: int
    ) -> None:
        self.clients: dict[int, Client] = {}
        self.too_large = False
        self._orders = orders
        self._pages = pages
        self._report = report
        self._asked: dict[int, Asked] = {}
        self._owners: dict[str, Client] = {}
        self._left: set[str] = set()  # sessions of clients that are disconnected
        self._own_pages: set[str] = set()
        self._next_id = FIRST_ID
        self._own: deque[bytes] = deque()
        self._turns: deque[Client] = deque()
        self._writing = memoryview(b"")
        self._partial = bytearray()
        self._skipping = False
        # The rest of the message that began before there was a client goes to Playwright.
        self._passed = inside
        self._passing = inside > 0

    @property
    def writing(self) -> bool:
        """Whether a command is partly written: nobody else may write to the browser now."""
        return bool(self._writing)

    @property
    def ready(self) -> bool:
        """Whether there is something to write to the browser."""
        return bool(self._writing or self._own) or any(each.session and each.commands for each in self._turns)

    def add(self, name: str) -> None:
        """Connect a client that the worker announced, and ask the browser for a session."""
        if len(self.clients) >= MAX_CLIENTS:
            self._report({"cut": name, "why": f"the browser has {MAX_CLIENTS} clients already"})
            return
        try:
            client = dial(name, self._orders.worker_pid)
        except OSError as error:
            self._report({"cut": name, "why": f"the keeper cannot connect to its worker: {error}"})
            return
        self.clients[client.descriptor] = client
        self._turns.append(client)
        self._ask("Target.attachToBrowserTarget", {}, client)

    def remove(self, client: Client, why: str) -> None:
        """Disconnect a client and end its sessions in the browser."""
        if client.gone:
            return
        del self.clients[client.descriptor]
        self._turns.remove(client)
        client.close()
        for session in client.sessions:
            del self._owners[session]
        self._own_pages -= client.sessions
        if len(self._left) > MAX_LEFT_SESSIONS:
            self._left.clear()
        self._left |= client.sessions
        if client.session:
            self._ask("Target.detachFromTarget", {"sessionId": client.session}, None)
        self._report({"cut": client.name, "why": why[:500]})

    def remove_all(self, why: str) -> None:
        """Disconnect all clients. Commands of theirs that still wait do not reach the browser either."""
        for client in list(self.clients.values()):
            self.serve(client.descriptor, readable=False, writable=True)  # they still get answers that arrived
            self.remove(client, why)

    def serve(self, descriptor: int, *, readable: bool, writable: bool) -> None:
        """Read from and write to a client whose socket is ready."""
        client = self.clients.get(descriptor)
        if client is None:
            return
        try:
            if writable:
                client.write()
            if readable:
                client.read()
        except BadMessage as error:
            self.remove(client, str(error))
        except EOFError:
            self.remove(client, "")

    def give(self, to: Channel) -> None:
        """Write to the browser: first the partly written command, then one command of each client in turn."""
        for _ in range(len(self._turns) + 1):
            if not self._writing and not self._choose():
                return
            written = to.write(self._writing)
            self._writing = self._writing[written:] if written >= 0 else memoryview(b"")
            if self._writing:
                return

    def _choose(self) -> bool:
        """Choose the next command to write. False if there is none."""
        if self._own:
            self._writing = memoryview(self._own.popleft())
            return True
        for _ in range(len(self._turns)):
            if not self._turns:  # the last client was just disconnected
                break
            client = self._turns[0]
            self._turns.rotate(-1)
            while client.session and client.commands:
                if self._take(client, client.commands.popleft()):
                    return True
        return False

    def _take(self, client: Client, command: Command) -> bool:
        """Make a client's command the next to write. False if the keeper answered it itself."""
        session = command.session or client.session
        if command.method == "Browser.close":
            self._report({"close_asked": client.name})
            self._answer(client, command, b'"result":{}')
        elif command.refused:
            self._fail(client, command, -32000, f"{command.method}: {command.refused}")
        elif session not in client.sessions:
            self._fail(client, command, -32001, "Session with given id not found.")
        elif session in self._own_pages and not passes_there(command.method):
            self._fail(client, command, -32000, f"{command.method}: {OWN_PAGE}")
        else:
            asked = Asked(client, command.method, command.number, command.session)
            message = command.as_bytes(self._number(asked), session)
            client.unanswered += 1
            self._pages.on_command(message[:200], message[-_TAIL - 1 : -1])
            self._writing = memoryview(message)
            return True
        return False

    def _fail(self, client: Client, command: Command, code: int, message: str) -> None:
        error = to_json({"code": code, "message": message})
        self._answer(client, command, b'"error":' + error)

    def _answer(self, client: Client, command: Command, body: bytes) -> None:
        session = b',"sessionId":' + json.dumps(command.session).encode() if command.session else b""
        self._put(client, b'{"id":%d,' % command.number, body, session + b"}")

    def _ask(self, method: str, params: dict[str, object], client: Client | None) -> None:
        """Queue a command of the keeper's own, without a session."""
        number = self._number(Asked(client, method))
        message = {"id": number, "method": method, "params": params}
        self._own.append(json.dumps(message, separators=(",", ":")).encode() + b"\0")

    def _number(self, asked: Asked) -> int:
        """The id for the next command to the browser; remembers the command until its answer."""
        while True:
            self._next_id = self._next_id + 1 if self._next_id < LAST_ID else FIRST_ID
            if self._next_id not in self._asked:
                self._asked[self._next_id] = asked
                return self._next_id

    def split(self, piece: bytes) -> bytes:
        """Take the next bytes from the browser: queue the clients' messages, return the bytes for Playwright."""
        for_playwright = bytearray()
        start = 0
        while (end := piece.find(b"\0", start)) >= 0:
            if self._passing:
                for_playwright += self._pass(piece[start : end + 1])
                self._passing = False
            elif self._skipping:
                self._skipping = False
            else:
                message = bytes(self._partial) + piece[start:end] if self._partial else piece[start:end]
                self._partial.clear()
                if self._is_playwrights(message):
                    for_playwright += message
                    for_playwright += b"\0"
            start = end + 1
        rest = piece[start:]
        if self._passing:
            for_playwright += self._pass(rest)
        elif not self._skipping:
            self._partial += rest
            self._check_size()
        return bytes(for_playwright)

    def _pass(self, piece: bytes) -> bytes:
        self._passed += len(piece.rstrip(b"\0"))
        self.too_large = self.too_large or self._passed > self._orders.max_message_bytes
        return piece

    def _check_size(self) -> None:
        """For a message above the limit, disconnect the client that asked for it. Playwright's own ends the browser."""
        if len(self._partial) <= self._orders.max_message_bytes:
            return
        asked = self._asked.get(_number_of(self._partial[:32]) or 0)
        if asked is None or asked.client is None:
            self.too_large = True
            return
        self.remove(asked.client, f"the answer to {asked.method} is larger than a message may be")
        self._partial.clear()
        self._skipping = True

    def _is_playwrights(self, message: bytes) -> bool:
        """Whether a message is for Playwright. A message for a client is delivered to it."""
        if message.startswith(b'{"id":'):
            number = _number_of(message[:32])
            if number is None or not FIRST_ID <= number <= LAST_ID:
                return True
            asked = self._asked.pop(number, None)
            if asked is not None:
                self._deliver_answer(asked, message)
            return False
        session = session_of(message[-_TAIL:])
        if session is None:
            return not (message.startswith(b'{"error"') or self._is_about_client(message))
        owner = self._owners.get(session)
        if owner is None and session not in self._left:
            return True
        self._learn(owner, message)
        if owner is not None:
            self._put(owner, *_without_session(message, owner.session if session == owner.session else ""))
        return False

    def _is_about_client(self, message: bytes) -> bool:
        """Whether an event without a session is about a client's session, and so not for Playwright."""
        if not message.startswith((_ATTACHED, _DETACHED)):
            return False
        params = _params(message)
        info = params.get("targetInfo")
        if isinstance(info, dict):
            return info.get("type") == "browser"
        session = str(params.get("sessionId"))
        return session in self._owners or session in self._left

    def _learn(self, owner: Client | None, message: bytes) -> None:
        if message.startswith(_ATTACHED):
            params = _params(message)
            session = str(params.get("sessionId", ""))
            self._own_session(owner, session)
            if session in self._owners and is_own_page(params.get("targetInfo")):
                self._own_pages.add(session)
        elif message.startswith(_DETACHED):
            session = str(_params(message).get("sessionId", ""))
            self._owners.pop(session, None)
            self._own_pages.discard(session)
            self._left.discard(session)
            if owner is not None:
                owner.sessions.discard(session)

    def _own_session(self, owner: Client | None, session: str) -> None:
        if owner is None or owner.gone:
            self._left.add(session)
        elif session:
            owner.sessions.add(session)
            self._owners[session] = owner

    def _deliver_answer(self, asked: Asked, message: bytes) -> None:
        client = asked.client
        if client is None:
            return
        gives = asked.method in _GIVES_SESSION
        session = _result(message).get("sessionId") if gives else None
        if isinstance(session, str):
            self._own_session(client, session)
        if asked.number is None:
            self._attached(client, session)
            return
        client.unanswered -= 1
        if client.gone:
            return
        comma = message.index(b",")
        head, tail = _without_session(message[comma:], "" if asked.session else client.session)
        self._put(client, b'{"id":%d' % asked.number, head, tail)

    def _attached(self, client: Client, session: object) -> None:
        """Handle the answer to a client's first command: its browser session, or none."""
        if not isinstance(session, str):
            self.remove(client, "the browser gave it no session")
        elif client.gone:
            self._ask("Target.detachFromTarget", {"sessionId": session}, None)
        else:
            client.session = session

    def _put(self, client: Client, *parts: bytes) -> None:
        if not client.gone and not client.put(*parts):
            self.remove(client, "it does not read what the browser sends")


def _number_of(begin: bytes | bytearray) -> int | None:
    digits = begin[6:].partition(b",")[0]
    return int(digits) if digits.isdigit() else None


def _without_session(message: bytes, session: str) -> tuple[bytes, bytes]:
    """The message without its `sessionId`, if that is the client's own browser session, in two parts."""
    if not session:
        return message, b""
    mark = b',"sessionId":"' + session.encode() + b'"}'
    return (message[: -len(mark)], b"}") if message.endswith(mark) else (message, b"")


def _params(message: bytes) -> dict[str, object]:
    return _object(message, "params")


def _result(message: bytes) -> dict[str, object]:
    return _object(message, "result")


def _object(message: bytes, name: str) -> dict[str, object]:
    try:
        found = json.loads(message).get(name)
    except (ValueError, AttributeError):
        return {}
    return found if isinstance(found, dict) else {}
