"""Errors of the browser by their captured texts: tests/browsers/test_real_errors.py makes the same ones live."""

import pytest

from leasekeeper.core.classify import OTHERWISE, TABLE, Facts, classify, kind_of, summary
from leasekeeper.core.failures import FAILURES

ERROR = "playwright._impl._errors.Error"
TIMEOUT = "playwright._impl._errors.TimeoutError"
CLOSED = "playwright._impl._errors.TargetClosedError"

GOTO_LOG = '\nCall log:\n  - navigating to "http://shop.test/", waiting until "load"\n'
NET = "Page.goto: net::{} at http://shop.test/" + GOTO_LOG

TEMPORARY = """
ERR_CONNECTION_RESET ERR_CONNECTION_REFUSED ERR_CONNECTION_CLOSED ERR_CONNECTION_TIMED_OUT ERR_TIMED_OUT
ERR_NAME_NOT_RESOLVED ERR_INTERNET_DISCONNECTED ERR_NETWORK_CHANGED ERR_EMPTY_RESPONSE ERR_ADDRESS_UNREACHABLE
ERR_HTTP2_PROTOCOL_ERROR ERR_QUIC_PROTOCOL_ERROR ERR_CONTENT_LENGTH_MISMATCH ERR_NETWORK_IO_SUSPENDED
"""
PROXY = """
ERR_PROXY_CONNECTION_FAILED ERR_TUNNEL_CONNECTION_FAILED ERR_PROXY_AUTH_UNSUPPORTED ERR_PROXY_AUTH_REQUESTED
ERR_PROXY_CERTIFICATE_INVALID ERR_SOCKS_CONNECTION_FAILED ERR_SOCKS_CONNECTION_HOST_UNREACHABLE
ERR_NO_SUPPORTED_PROXIES ERR_UNEXPECTED_PROXY_AUTH ERR_MANDATORY_PROXY_CONFIGURATION_FAILED
"""
FOR_GOOD = """
ERR_CERT_AUTHORITY_INVALID ERR_CERT_DATE_INVALID ERR_SSL_PROTOCOL_ERROR ERR_ABORTED ERR_INVALID_URL
ERR_UNKNOWN_URL_SCHEME ERR_BLOCKED_BY_CLIENT ERR_BLOCKED_BY_RESPONSE ERR_UNSAFE_PORT ERR_FILE_NOT_FOUND
ERR_TOO_MANY_REDIRECTS ERR_HTTP_RESPONSE_CODE_FAILURE ERR_INVALID_AUTH_CREDENTIALS ERR_FAILED
ERR_RESPONSE_HEADERS_MULTIPLE_CONTENT_LENGTH
"""
BY_CODE = [
    *((code, "TEMPORARY_NAVIGATION_ERROR") for code in TEMPORARY.split()),
    *((code, "PROXY_UNREACHABLE") for code in PROXY.split()),
    *((code, "TASK_ERROR") for code in FOR_GOOD.split()),
]

STRICT = """Locator.click: Error: strict mode violation: locator("button") resolved to 2 elements:
    1) <button>net::ERR_CONNECTION_RESET</button> aka get_by_role("button", name="a")

Call log:
  - waiting for locator("button")
"""
FILL = """Locator.fill: Timeout 500ms exceeded.
Call log:
  - waiting for locator("#h")
    - fill("hunter2")
"""
IN_USE = """BrowserType.launch_persistent_context: Failed to create a ProcessSingleton for your profile directory. \
This usually means that the profile is already in use by another instance of Chromium.
Call log:
  - <launching> /usr/bin/chromium --headless
"""
OTHER_HOST = """BrowserType.launch_persistent_context: Target page, context or browser has been closed
Browser logs:

<launched> pid=7616
[pid=7616][err] The profile appears to be in use by another Chromium process (123) on another computer (otherhost).
"""
NO_SANDBOX = """BrowserType.launch_persistent_context: Target page, context or browser has been closed
Browser logs:

Chromium sandboxing failed!
"""
CAPTURED = [
    (ERROR, STRICT, "TASK_ERROR"),
    (ERROR, "Page.goto: Download is starting" + GOTO_LOG, "TASK_ERROR"),
    (ERROR, "Page.goto: Protocol error (Page.navigate): Cannot navigate to invalid URL" + GOTO_LOG, "TASK_ERROR"),
    (ERROR, "Page.evaluate: Error: boom\n    at eval (eval at evaluate (:370:30), <anonymous>:1:15)", "TASK_ERROR"),
    (ERROR, "Page.evaluate: Error: net::ERR_CONNECTION_RESET\n    at eval", "TASK_ERROR"),
    (ERROR, "Page.evaluate: TypeError: Failed to fetch\n    at eval", "TASK_ERROR"),
    (ERROR, "Page.click: Target crashed \nCall log:\n  - waiting for locator", "BROWSER_CRASHED"),
    (CLOSED, "Page.wait_for_selector: Page crashed\nCall log:\n  - waiting for", "BROWSER_CRASHED"),
    (CLOSED, "Page.click: Target page, context or browser has been closed", "TASK_ERROR"),
    (ERROR, "Connection closed while reading from the driver", "BROWSER_CRASHED"),
    (TIMEOUT, "Page.goto: Timeout 1000ms exceeded." + GOTO_LOG, "TIMEOUT"),
    (TIMEOUT, FILL, "TIMEOUT"),
    (TIMEOUT, 'Page.wait_for_event: Timeout 500ms exceeded while waiting for event "popup"', "TIMEOUT"),
    (TIMEOUT, "APIRequestContext.get: Timeout 500ms exceeded.\nCall log:\n  - → GET http://shop.test/", "TIMEOUT"),
    (ERROR, "APIRequestContext.get: connect ECONNREFUSED 127.0.0.1:9999\nCall log:", "TEMPORARY_NAVIGATION_ERROR"),
    (ERROR, "APIRequestContext.get: read ECONNRESET\nCall log:", "TEMPORARY_NAVIGATION_ERROR"),
    (ERROR, "APIRequestContext.get: getaddrinfo ENOTFOUND nobody.invalid", "TEMPORARY_NAVIGATION_ERROR"),
    (ERROR, "APIRequestContext.get: socket hang up", "TEMPORARY_NAVIGATION_ERROR"),
    (ERROR, IN_USE, "PROFILE_IN_USE_ELSEWHERE"),
    (CLOSED, OTHER_HOST, "PROFILE_IN_USE_ELSEWHERE"),
    (CLOSED, NO_SANDBOX, "BROWSER_LAUNCH_FAILED"),
    (TIMEOUT, "BrowserType.launch_persistent_context: Timeout 30000ms exceeded.", "BROWSER_LAUNCH_FAILED"),
    (ERROR, "BrowserType.launch_persistent_context: Executable doesn't exist at /x", "BROWSER_LAUNCH_FAILED"),
    (ERROR, "BrowserType.connect_over_cdp: connect ECONNREFUSED 127.0.0.1:1", "BROWSER_LAUNCH_FAILED"),
    ("builtins.ValueError", "net::ERR_CONNECTION_RESET", "TASK_ERROR"),
    ("builtins.TimeoutError", "", "TASK_ERROR"),
    ("shop.TimeoutError", "Page.goto: Timeout 1000ms exceeded.", "TASK_ERROR"),
    (ERROR, "", "TASK_ERROR"),
]
EXPECT = 'Locator expected to be visible\nActual value: None\nCall log:\n  - Expect "to_be_visible" locator("#none")'


@pytest.mark.parametrize(("code", "reason"), BY_CODE, ids=[code for code, _ in BY_CODE])
def test_a_network_error_has_its_meaning(code: str, reason: str) -> None:
    assert classify(ERROR, NET.format(code)) == reason


@pytest.mark.parametrize(("kind", "message", "reason"), CAPTURED)
def test_a_captured_error_has_its_meaning(kind: str, message: str, reason: str) -> None:
    assert classify(kind, message) == reason


def test_a_closed_page_is_a_crash_only_if_the_browser_died() -> None:
    text = "Page.goto: Target page, context or browser has been closed"
    assert classify(CLOSED, text, Facts(browser_alive=True)) == "TASK_ERROR"
    assert classify(CLOSED, text, Facts(browser_alive=False)) == "BROWSER_CRASHED"


def test_a_navigation_of_a_page_that_crashed_is_a_crash() -> None:
    """The text alone says ERR_ABORTED: it was captured from chrome://crash."""
    assert classify(ERROR, NET.format("ERR_ABORTED"), Facts(page_crashed=True)) == "BROWSER_CRASHED"


def test_a_crash_of_another_page_does_not_excuse_the_task() -> None:
    assert classify(ERROR, STRICT, Facts(page_crashed=True)) == "TASK_ERROR"
    assert classify(TIMEOUT, FILL, Facts(page_crashed=True)) == "TIMEOUT"


def test_refused_credentials_are_the_proxys_if_there_is_one() -> None:
    text = NET.format("ERR_INVALID_AUTH_CREDENTIALS")
    assert classify(ERROR, text, Facts(proxied=True)) == "PROXY_UNREACHABLE"


def test_an_expectation_is_the_tasks_own_unless_the_browser_died() -> None:
    assert classify("builtins.AssertionError", EXPECT) == "TASK_ERROR"
    assert classify("builtins.AssertionError", EXPECT, Facts(browser_alive=False)) == "BROWSER_CRASHED"
    assert classify("builtins.AssertionError", "1 != 2", Facts(browser_alive=False)) == "TASK_ERROR"


def test_the_table_knows_only_reasons_of_the_failure_table() -> None:
    assert {row.reason for row in TABLE} | {OTHERWISE} <= set(FAILURES)


def test_a_kind_is_the_full_name_of_the_class() -> None:
    assert kind_of(TimeoutError()) == "builtins.TimeoutError"


def test_a_summary_leaves_out_what_was_typed_into_a_form() -> None:
    assert summary(FILL) == "Locator.fill: Timeout 500ms exceeded."


def test_a_summary_is_short() -> None:
    assert summary("x" * 1_000) == "x" * 299 + "…"
    assert summary("") == ""


def test_a_summary_is_redacted_before_it_is_cut() -> None:
    said = "x" * 290 + "a-long-secret" + "y" * 100
    assert summary(said, lambda text: text.replace("a-long-secret", "[gone]")) == "x" * 290 + "[gone]yyy…"
