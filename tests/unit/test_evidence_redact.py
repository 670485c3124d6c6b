"""Secrets that must not reach evidence, in every form they come in; and what must stay readable."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.browsers.keeper import pages as keeper
from leasekeeper.evidence.redact import MAX_URL, REDACTED, Redactor

SECRET = "p@ss/wörd 1"  # noqa: S105 - nobody's password
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"

TEXTS = [
    ("GET https://user:pw@shop.test/a?page=2 failed", "GET https://shop.test/a?page=2 failed"),
    ("at https://shop.test/a?token=abc&x=1#frag: no", "at https://shop.test/a?token=[redacted]&x=1 no"),
    ('{"password": "a\\"b c", "x": 1}', '{"password": "[redacted]", "x": 1}'),
    ('{\\"password\\":\\"abc\\",\\"y\\":2}', '{\\"password\\":\\"[redacted]\\",\\"y\\":2}'),
    ('"api_key":"its end was cut o', '"api_key":"[redacted]"'),
    ("MY_SECRET_KEY_MISSING: hunter2", "MY_SECRET_KEY_MISSING: [redacted]"),
    ("secret_key_missing: hunter2", "secret_key_missing: [redacted]"),
    ("client_secret=abc&a=b", "client_secret=[redacted]&a=b"),
    ("csrf-token = 'x y'", "csrf-token = '[redacted]'"),
    ("{'passwd'=>'abc'}", "{'passwd'=>'[redacted]'}"),
    ("Authorization: Basic dXNlcjpwYXNz\nAccept: */*", "Authorization: [redacted]\nAccept: */*"),
    ('{"cookie": "a=b; c=d", "x": 1}', '{"cookie": "[redacted]", "x": 1}'),
    ("Set-Cookie: sid=1; Path=/\r\nnext", "Set-Cookie: [redacted]\r\nnext"),
    ("sent Bearer abcdef123456 along", "sent Bearer [redacted] along"),
    (f"the answer was {JWT}.", "the answer was [redacted]."),
    ("card 4111 1111 1111 1111 declined", "card [redacted] declined"),
    ("card 4111-1111-1111-1111", "card [redacted]"),
    ('  - fill("hunter2)")\n  - attempting fill action', "  - fill([redacted])\n  - attempting fill action"),
    ('resolved to <input id="user" value="hunter2"/>', 'resolved to <input id="user" value="[redacted]"/>'),
    ("key sk-live-abcdefghij0123456789", "key [redacted]"),
    ("no answer of redis://:hunter2@cache/0", "no answer of redis://cache/0"),
    ("postgresql+psycopg://me:pw@db/shop?password=x", "postgresql+psycopg://db/shop?password=[redacted]"),
]
READABLE = [
    "TypeError: cannot read properties of undefined (reading 'x')",
    "order 1731700000000 of 2026-11-15 12:00:00",
    "https://shop.test/orders/3f2504e0-4f89-41d3-9a0c-0305e82c3301?page=2&sort=asc",
    "about:blank",
    "the password field is empty",
    "SECRET_KEY_MISSING: snapshots are encrypted, and no key is set here",
    "WEBHOOK_SECRET_NEEDED: set one. SECRET_UNAVAILABLE: secret job-shop is not in the store",
    "0000 0000 0000 0000",
]
URLS = [
    (
        "https://user:pw@shop.test/cb?code=1&state=2#access_token=x",
        "https://shop.test/cb?code=[redacted]&state=[redacted]",
    ),
    ("https://shop.test/?next=https%3A%2F%2Fa.test%2F%3Ftoken%3D1", "https://shop.test/?next=[redacted]"),
    ("https://shop.test/?v=0123456789abcdef0123456789abcdef", "https://shop.test/?v=[redacted]"),
    (f"https://shop.test/reset/{'a1' * 20}/go", "https://shop.test/reset/[redacted]/go"),
    ("data:text/html,<b>private</b>", "data:[redacted]"),
    ("javascript:alert(document.cookie)", "javascript:[redacted]"),
    ("http://[::1]:8080/a?b=c", "http://[::1]:8080/a?b=c"),
    ("blob:https://user:pw@shop.test/1?token=x", "blob:https://shop.test/1?token=[redacted]"),
    ("view-source:data:text/html,private", "view-source:[redacted]"),
    ("about:blank", "about:blank"),
    ("chrome-error://chromewebdata/", "chrome-error://chromewebdata/"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_a_secret_is_taken_out_of_a_text(text: str, expected: str) -> None:
    assert Redactor().text(text) == expected


@pytest.mark.parametrize("text", READABLE)
def test_what_is_no_secret_stays_readable(text: str) -> None:
    assert Redactor().text(text) == text


@pytest.mark.parametrize(("url", "expected"), URLS)
def test_a_secret_is_taken_out_of_an_address(url: str, expected: str) -> None:
    assert Redactor().url(url) == expected


@pytest.mark.parametrize(
    "form",
    [SECRET, "p%40ss%2Fw%C3%B6rd%201", "p%40ss/w%C3%B6rd%201", "p%40ss%2Fw%C3%B6rd+1", "p@ss/w\\u00f6rd 1"],
    ids=["plain", "encoded", "encoded-path", "encoded-form", "json"],
)
def test_a_named_secret_is_found_in_every_form(form: str) -> None:
    assert Redactor([SECRET]).text(f"it was <{form}> there") == f"it was <{REDACTED}> there"


def test_a_named_secret_is_found_in_an_address() -> None:
    assert Redactor([SECRET]).url("https://shop.test/a/p%40ss%2Fw%C3%B6rd%201/b") == f"https://shop.test/a/{REDACTED}/b"


def test_an_address_is_cut_once_its_secrets_are_gone() -> None:
    begin = "https://shop.test/" + "a/" * 985
    found = Redactor([SECRET]).url(begin + "p%40ss%2Fw%C3%B6rd%201" + "/b" * 500_000)
    assert found.startswith(begin + REDACTED)
    assert len(found) == MAX_URL == keeper.MAX_URL


def test_a_short_text_is_cut_once_its_secrets_are_gone() -> None:
    for before in range(10, 60):
        found = Redactor([SECRET]).short("a" * before + SECRET + "b" * 1_000_000, 50)
        assert len(found) == 50
        assert "p@" not in found


def test_secrets_can_be_named_later() -> None:
    redactor = Redactor()
    redactor.add("hunter22", "abc")
    assert redactor.text("hunter22 and abc") == f"{REDACTED} and abc"


def test_a_redactor_does_not_show_its_secrets() -> None:
    assert "hunter22" not in repr(Redactor(["hunter22"]))


def test_headers_that_carry_credentials_lose_their_value() -> None:
    headers = {"Authorization": "x", "Cookie": "a=b", "X-Api-Key": "k", "X-CSRF-Token": "t", "Accept": "text/html"}
    redacted = Redactor().headers({**headers, "Referer": "https://u:p@shop.test/#a"})
    kept = {name: value for name, value in redacted.items() if value != REDACTED}
    assert kept == {"Accept": "text/html", "Referer": "https://shop.test/"}


PIECES = (
    [text for text, _ in TEXTS] + [url for url, _ in URLS] + READABLE + [SECRET, '"', "'", "\\", "=", ":", "\n", " "]
)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=6))
def test_redacting_twice_changes_nothing_more(pieces: list[str]) -> None:
    redactor = Redactor([SECRET])
    once = redactor.text("".join(pieces))
    assert redactor.text(once) == once


HARD = {
    "one word": "a" * 100_000,
    "keys": "password=" * 11_000,
    "open quotes": 'password="' * 10_000,
    "jwt starts": "eyJ" * 33_000,
    "digits": "1 " * 50_000,
    "addresses": "http://" * 14_000,
    "parameters": "http://a/?" + "a=b&" * 25_000,
    "calls": 'fill("' * 16_000,
    "calls without": "fill(" * 20_000,
    "escapes": '\\"' * 50_000,
    "a log": "\n".join(f"GET https://shop.test/{n}?token=abc{n} password=x{n}" for n in range(2_000)),
}


@pytest.mark.parametrize("name", HARD)
def test_a_hundred_kilobytes_take_no_time(name: str) -> None:
    """A twentieth of the limit on a quiet machine; what must not happen is time that grows with the square."""
    began = time.process_time()
    Redactor([SECRET]).text(HARD[name])
    assert time.process_time() - began < 2
