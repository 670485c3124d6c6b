"""The shop that the demo works in: a few pages on a free port of this machine, with the standard library alone.

It accepts any login, ends one customer's session, asks another for a code, is slow, and hangs once. And it counts:
every request has the lease that made it in a header, so the shop knows which ones arrived too late.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

MAX_BODY: Final = 10_000
ORDERS: Final = ("1041 a novel", "1042 an atlas", "1043 two cookbooks")
ARTICLES: Final = ("novel", "atlas", "cookbook", "dictionary")

_STYLE: Final = (
    "body{font:18px/1.5 sans-serif;margin:0;background:#f4f1ea;color:#222}header{background:#274;color:#fff;"
    "padding:.7em 2em}main{padding:1em 2em}a,button{display:inline-block;margin:.4em .8em .4em 0;padding:.4em 1em;"
    "background:#274;color:#fff;border:0;border-radius:.3em;font:inherit;text-decoration:none}"
    "input{font:inherit;padding:.3em}li{padding:.2em 0}.alarm{background:#fdd;padding:1em;border-left:.4em solid #c33}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request that the shop received. `click`: a button or link was pressed for it."""

    at: datetime
    lease: str
    method: str
    path: str
    click: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The delays of slow pages, in seconds. `hang` is longer than any wait."""

    export: float = 1.5
    report: float = 3.0
    hang: float = 30.0


def late(arrivals: Collection[Arrival], ended: Mapping[str, datetime]) -> list[Arrival]:
    """Requests that came under a lease that had ended. `ended`: the end of each lease."""
    return [arrival for arrival in arrivals if arrival.lease in ended and arrival.at > ended[arrival.lease]]


class Shop:
    """`with Shop(logged_out={"ada"}) as shop:` then `shop.url`. Every request has a thread of its own.

    Customers in `logged_out` can log in and see one page; then the session ends. Those in `doubted` are asked for a
    code. For those in `kept`, the first slow page hangs until the demo's next step there has happened.
    """

    def __init__(
        self,
        *,
        logged_out: Collection[str] = (),
        doubted: Collection[str] = (),
        kept: Collection[str] = (),
        pace: Pace | None = None,
    ) -> None:
        self.logged_out = frozenset(logged_out)
        self.doubted = frozenset(doubted)
        self.kept = frozenset(kept)
        self.pace = pace or Pace()
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._arrivals: list[Arrival] = []
        self._hung: set[str] = set()
        self._been_inside: set[str] = set()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="demo-shop", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def arrivals(self) -> list[Arrival]:
        """All requests so far."""
        with self._lock:
            return list(self._arrivals)

    def note(self, arrival: Arrival) -> None:
        with self._lock:
            self._arrivals.append(arrival)

    def lets_in(self, customer: str) -> bool:
        """Whether the customer's session allows one more page."""
        with self._lock:
            over = not customer or (customer in self.logged_out and customer in self._been_inside)
            self._been_inside.add(customer)
            return not over

    def hangs_now(self, customer: str) -> bool:
        """True once, for the first visit of each customer."""
        with self._lock:
            first = customer not in self._hung
            self._hung.add(customer)
            return first

    def takes(self, customer: str, usual: float) -> float:
        """The delay of this customer for a page that usually takes `usual`."""
        return self.pace.hang if customer in self.kept and self.hangs_now(customer) else usual

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_fault: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        super().__init__(("127.0.0.1", 0), _Visit)

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser may disconnect in the middle of an answer: ignore it."""


class _Visit(BaseHTTPRequestHandler):
    """One request."""

    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library names it
        """Counted, not printed."""

    def do_GET(self) -> None:
        self._visit(_PAGES)

    def do_POST(self) -> None:
        self._visit(_BUTTONS)

    def _visit(self, places: "Mapping[str, Callable[[_Visit], None]]") -> None:
        path = urlsplit(self.path).path
        self.server.shop.note(
            Arrival(
                at=datetime.now(UTC),
                lease=self.headers.get("X-Lease", ""),
                method=self.command,
                path=path,
                click=self.command == "POST" or path in _LINKS,
            )
        )
        place = places.get(path)
        if place is None:
            self.answer("Not here", "<p>There is no such page.</p>", status=404)
        elif path in _OPEN_TO_ALL or self.server.shop.lets_in(self.customer):
            place(self)
        else:
            self.go("/login")

    @property
    def customer(self) -> str:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get("customer")
        except CookieError:
            return ""
        return cookie.value if cookie else ""

    def form(self) -> dict[str, str]:
        length = min(int(self.headers.get("Content-Length") or 0), MAX_BODY)
        fields = parse_qs(self.rfile.read(length).decode(errors="replace"))
        return {name: values[0] for name, values in fields.items()}

    def wait(self, seconds: float) -> None:
        """Delay the answer, but not longer than the shop is open."""
        self.server.shop.closing.wait(seconds)

    def wait_for(self, usual: float) -> None:
        """Delay the answer of a page that usually takes `usual`."""
        self.wait(self.server.shop.takes(self.customer, usual))

    def answer(self, title: str, body: str, *, status: int = 200) -> None:
        page = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<link rel="icon" href="data:,"><style>{_STYLE}</style></head><body><header>The Corner Shop'
            f"{' · ' + escape(self.customer) if self.customer else ''}</header><main><h1>{title}</h1>{body}</main>"
        ).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def go(self, path: str, customer: str | None = None) -> None:
        self.send_response(303)
        self.send_header("Location", path)
        if customer is not None:
            self.send_header("Set-Cookie", f"customer={customer}; Max-Age=2592000; Path=/; HttpOnly")
        self.send_header("Content-Length", "0")
        self.end_headers()


def _login_page(visit: _Visit) -> None:
    again = "<p>Your session has ended. Please log in again.</p>" if visit.customer else ""
    visit.answer(
        "Log in",
        f'{again}<form id="login" method="post" action="/login"><input id="customer" name="customer" '
        'placeholder="your name"> <button id="enter">Enter</button></form>',
    )


def _enter(visit: _Visit) -> None:
    name = "".join(c for c in visit.form().get("customer", "") if c.isascii() and (c.isalnum() or c in "_-."))
    if not name:
        visit.go("/login")
        return
    visit.go("/check" if name in visit.server.shop.doubted else "/dashboard", customer=name)


def _check_page(visit: _Visit) -> None:
    visit.answer(
        "Is it really you?",
        '<p class="alarm">We noticed unusual activity. Enter the code that we sent you by mail.</p>'
        '<input id="code" placeholder="code"> <button>Confirm</button>',
    )


def _dashboard(visit: _Visit) -> None:
    visit.answer(
        "Dashboard", f'<p id="dashboard">{len(ORDERS)} new orders.</p><a id="orders" href="/orders">Orders</a>'
    )


def _orders(visit: _Visit) -> None:
    listed = "".join(f'<li class="order">{order}</li>' for order in ORDERS)
    visit.answer(
        "Orders",
        f'<ul>{listed}</ul><form method="post" action="/export"><button id="export">Export all</button></form>',
    )


def _export(visit: _Visit) -> None:
    visit.wait_for(visit.server.shop.pace.export)
    visit.answer("Exported", f'<p id="exported">{len(ORDERS)} orders</p>')


def _report(visit: _Visit) -> None:
    visit.wait_for(visit.server.shop.pace.report)
    visit.answer("Monthly report", '<p>A good month.</p><a id="details" href="/report/details">Details</a>')


def _details(visit: _Visit) -> None:
    visit.answer(
        "Monthly report, details",
        '<p>Novels went well.</p><form method="post" action="/send"><button id="send">Send</button></form>',
    )


def _send(visit: _Visit) -> None:
    visit.answer("Sent", '<p id="sent">The report is on its way.</p>')


def _stock(visit: _Visit) -> None:
    if visit.server.shop.hangs_now(visit.customer):
        visit.wait(visit.server.shop.pace.hang)
    visit.answer("Stock", "<ul>" + "".join(f'<li class="article">{name}</li>' for name in ARTICLES) + "</ul>")


def _prices(visit: _Visit) -> None:
    rows = "".join(f'<li class="price">{name}, {12 + n}.50</li>' for n, name in enumerate(ARTICLES))
    visit.answer("Prices", f"<ul>{rows}</ul>")


_PAGES: Final[Mapping[str, Callable[[_Visit], None]]] = {
    "/login": _login_page,
    "/check": _check_page,
    "/dashboard": _dashboard,
    "/orders": _orders,
    "/report": _report,
    "/report/details": _details,
    "/stock": _stock,
    "/prices": _prices,
}
_BUTTONS: Final[Mapping[str, Callable[[_Visit], None]]] = {"/login": _enter, "/export": _export, "/send": _send}
_OPEN_TO_ALL: Final = frozenset({"/login", "/check", "/prices"})
_LINKS: Final = frozenset({"/orders", "/report/details"})
