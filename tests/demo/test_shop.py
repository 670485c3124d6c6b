"""The demo's shop by itself: who gets in, what it counts, and what it calls late."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from http.client import HTTPConnection, HTTPResponse, RemoteDisconnected
from urllib.parse import urlencode, urlsplit

import pytest

from leasekeeper.demo.shop import Pace, Shop, late

PACE = Pace(export=0.0, report=0.0, hang=30.0)


@pytest.fixture
def shop() -> Iterator[Shop]:
    with Shop(logged_out=["bob"], doubted=["eve"], pace=PACE) as shop:
        yield shop


class Visitor:
    """A browser, nearly: it follows redirections and keeps its cookie."""

    def __init__(self, shop: Shop, lease: str = "") -> None:
        self._place = urlsplit(shop.url).netloc
        self._headers = {"X-Lease": lease} if lease else {}
        self.path = ""

    def ask(self, method: str, path: str, **fields: str) -> tuple[int, str]:
        connection = HTTPConnection(self._place, timeout=20)
        try:
            body = urlencode(fields) if method == "POST" else None
            connection.request(method, path, body, self._headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        self._keep_cookie(answer)
        self.path = path
        if answer.status == 303:
            return self.ask("GET", answer.headers["Location"])
        return answer.status, text

    def _keep_cookie(self, answer: HTTPResponse) -> None:
        if answer.headers["Set-Cookie"]:
            self._headers["Cookie"] = answer.headers["Set-Cookie"].split(";")[0]


def test_whoever_logs_in_sees_the_dashboard_and_stays_logged_in(shop: Shop) -> None:
    ada = Visitor(shop)
    assert ada.ask("GET", "/orders")[1].count('id="login"') == 1
    assert 'id="dashboard"' in ada.ask("POST", "/login", customer="ada")[1]
    status, orders = ada.ask("GET", "/orders")
    assert (status, orders.count('class="order"')) == (200, 3)
    assert 'id="exported">3 orders' in ada.ask("POST", "/export")[1]
    assert 'id="details"' in ada.ask("GET", "/report")[1]
    assert 'id="send"' in ada.ask("GET", "/report/details")[1]
    assert 'id="sent"' in ada.ask("POST", "/send")[1]


def test_a_session_that_the_shop_ends_leads_back_to_the_login_form(shop: Shop) -> None:
    bob = Visitor(shop)
    assert 'id="dashboard"' in bob.ask("POST", "/login", customer="bob")[1]
    answer = bob.ask("GET", "/orders")[1]
    assert 'id="login"' in answer
    assert "Your session has ended" in answer


def test_a_customer_that_the_shop_doubts_is_asked_for_a_code(shop: Shop) -> None:
    eve = Visitor(shop)
    assert 'id="code"' in eve.ask("POST", "/login", customer="eve")[1]
    assert eve.path == "/check"


def test_prices_are_for_everybody_and_unknown_pages_for_nobody(shop: Shop) -> None:
    assert Visitor(shop).ask("GET", "/prices")[1].count('class="price"') == 4
    assert Visitor(shop).ask("GET", "/secret")[0] == 404
    assert Visitor(shop).ask("POST", "/dashboard")[0] == 404


def test_a_name_cannot_write_into_the_page_or_the_headers(shop: Shop) -> None:
    answer = Visitor(shop).ask("POST", "/login", customer="<b>a\r\nSet-Cookie: x=1</b>")[1]
    assert "<b>" not in answer
    assert "baSet-Cookiex1b" in answer
    assert Visitor(shop).path != "/dashboard"


def test_the_stock_hangs_once_and_then_works() -> None:
    with Shop(pace=PACE) as shop:
        ada = Visitor(shop)
        ada.ask("POST", "/login", customer="ada")
        hung = threading.Thread(target=ask_in_vain, args=(ada, "/stock"))
        hung.start()
        while "ada" not in shop._hung:
            hung.join(0.01)
        assert ada.ask("GET", "/stock")[1].count('class="article"') == 4
        assert hung.is_alive()
    hung.join()


def test_who_is_kept_waits_for_the_first_thing_that_takes_long() -> None:
    with Shop(kept=["ada"], pace=PACE) as shop:
        ada, bob = Visitor(shop), Visitor(shop)
        for visitor, name in ((ada, "ada"), (bob, "bob")):
            visitor.ask("POST", "/login", customer=name)
        assert shop.takes("bob", 1.5) == 1.5
        assert 'id="exported"' in bob.ask("POST", "/export")[1]
        hung = threading.Thread(target=ask_in_vain, args=(ada, "/report"))
        hung.start()
        while "ada" not in shop._hung:
            hung.join(0.01)
        assert 'id="details"' in ada.ask("GET", "/report")[1]
        assert hung.is_alive()
    hung.join()


def ask_in_vain(visitor: Visitor, path: str) -> None:
    try:
        visitor.ask("GET", path)
    except (RemoteDisconnected, OSError):
        return


def test_every_request_is_counted_with_the_lease_that_made_it(shop: Shop) -> None:
    ada = Visitor(shop, lease="ada:7")
    ada.ask("POST", "/login", customer="ada")
    ada.ask("GET", "/orders")
    Visitor(shop).ask("GET", "/prices")
    assert [(a.lease, a.method, a.path, a.click) for a in shop.arrivals] == [
        ("ada:7", "POST", "/login", True),
        ("ada:7", "GET", "/dashboard", False),
        ("ada:7", "GET", "/orders", True),
        ("", "GET", "/prices", False),
    ]


def test_late_is_what_came_in_under_a_lease_that_was_over(shop: Shop) -> None:
    Visitor(shop, lease="ada:7").ask("GET", "/prices")
    (arrival,) = shop.arrivals
    moment = timedelta(microseconds=1)
    after = replace(arrival, at=arrival.at + moment)
    assert late([arrival, after], {"ada:7": arrival.at}) == [after]
    assert late([arrival, after], {"ada:7": after.at}) == []
    assert late([arrival, after], {"ada:6": arrival.at - moment}) == []
