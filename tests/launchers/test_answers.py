"""Answers of launchers that are neither yes nor no, and what is sent to them."""

from typing import Any

import pytest

from leasekeeper.browsers.keeper.launcher_calls import CallFailed, LauncherCalls
from leasekeeper.browsers.launcher_status import ask
from leasekeeper.core.failures import Reason
from leasekeeper.core.launchers import LauncherSaid
from tests.launchers.saying import Saying


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
