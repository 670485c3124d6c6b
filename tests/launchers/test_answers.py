"""Answers of launchers that are neither yes nor no, and what is sent to them."""

from typing import Any

import pytest

from leasekeeper.browsers.keeper.launcher_calls import CallFailed, LauncherCalls
from leasekeeper.browsers.launcher_status import ask
from leasekeeper.browsers.launchers import describe
from leasekeeper.core.failures import Reason
from leasekeeper.core.launchers import LauncherSaid
from tests.launchers.saying import TOKEN, Saying


@pytest.mark.parametrize(
    ("driver", "body"),
    [
        ("kameleo", {}),
        ("kameleo", {"status": {"lifetimeState": "running"}}),
        ("adspower", {"code": 0, "data": {"status": "Opening"}}),
        ("dolphin", {"success": True, "data": {"active": True}}),
        ("multilogin", {"status": {"error_code": "", "http_code": 200}}),
        ("multilogin", {"data": "id-2", "status": {"error_code": ""}}),
        ("http", {"state": "RUNNING"}),
    ],
)
def test_a_status_that_is_not_understood_is_no_proof(saying: Saying, driver: str, body: Any) -> None:
    """Whoever asks about a lost run asks again; whoever wants to start the profile does not."""
    saying.answer = (200, {}, body)
    with pytest.raises(CallFailed, match="says neither that the profile runs nor that it is idle"):
        ask(saying.described(driver))
    assert saying.refusal(driver).reason == Reason.LAUNCHER_UNAVAILABLE
    assert not any("start" in path for path in saying.asked)


@pytest.mark.parametrize(
    ("driver", "body"),
    [
        ("multilogin", {"data": {}, "status": {"error_code": ""}}),
        ("multilogin", {"data": {"id-2": {"status": "running"}}}),
        ("kameleo", {"lifetimeState": "terminated"}),
        ("adspower", {"code": 0, "data": {"status": "Inactive"}}),
        ("http", {"running": False}),
    ],
)
def test_a_status_that_says_idle_is_one(saying: Saying, driver: str, body: Any) -> None:
    saying.answer = (200, {}, body)
    assert ask(saying.described(driver)) is LauncherSaid.IDLE


def test_a_status_without_idle_proves_nothing(saying: Saying) -> None:
    """Of a fleet file from before `idle` was asked for."""
    saying.answer = (200, {}, {"running": False})
    described = saying.described("http", status={"path": "/profile/status", "running": {"running": True}})
    with pytest.raises(CallFailed, match="neither"):
        LauncherCalls(described).running()


def test_the_token_is_filled_into_headers(saying: Saying) -> None:
    calls = LauncherCalls(
        saying.described(
            "http",
            headers={"X-Api-Key": "{token}"},
            stop={"path": "/stop", "headers": {"X-Auth": "key {token}", "X-Profile": "{profile}"}},
        )
    )
    calls.stop()
    (heard,) = saying.heard
    assert (heard["X-Api-Key"], heard["X-Auth"], heard["X-Profile"]) == (TOKEN, f"key {TOKEN}", "id-1")
    assert "Authorization" not in heard


def test_a_token_that_no_header_can_hold_is_not_repeated(saying: Saying) -> None:
    calls = LauncherCalls(describe(saying.record("http"), "id-1", headless=True, token="two\nlines"))  # noqa: S106 - of nothing
    with pytest.raises(CallFailed, match="a header or the path is invalid") as failed:
        calls.stop()
    assert (failed.value.sent, "two" in str(failed.value)) == (False, False)
