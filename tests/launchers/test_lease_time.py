"""A keeper and a launcher that does not do as it is told: no stop past the lease, no start forgotten, no 429 answered
with more calls."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leasekeeper.browsers.keeper import launcher_end
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.launcher_end import LauncherEnd, LeaseTime
from leasekeeper.browsers.keeper.main import _refuse
from leasekeeper.browsers.keeper.orders import Orders, Refused
from leasekeeper.browsers.keeper_reports import read_report
from leasekeeper.core.failures import Reason
from leasekeeper.core.launchers import in_doubt
from leasekeeper.core.settle import Browser
from leasekeeper.runtime.endings import unopened_facts
from leasekeeper.runtime.evidence import report_summary
from tests.launchers.saying import Said, Saying

IDLE: Said = (200, {}, {"running": False})
STATUS, START, STOP = "/profile/status", "/profile/start", "/profile/stop"


def lease(folder: Path, *, deadline: float, kill_at: float) -> LeaseTime:
    now = boot_time()
    return LeaseTime(
        Orders(
            browser="http",
            user_data_dir=str(folder),
            profile_id="p1",
            lease_id="lease_1",
            token=1,
            run_id="run_1",
            folder=str(folder),
            deadline=now + deadline,
            kill_at=now + kill_at,
        )
    )


def refusal(end: LauncherEnd) -> Refused:
    with pytest.raises(Refused) as refused:
        end.start()
    return refused.value


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(launcher_end, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.forward))

    def forward(self, seconds: float) -> None:
        self.now += seconds


def test_past_the_lease_nothing_is_stopped(saying: Saying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vendor's stop names only the profile, which may be the next holder's."""
    clock = Clock(monkeypatch)
    saying.answer = (200, {}, {"running": True})
    end = LauncherEnd(saying.described("http"), lease(tmp_path, deadline=-60, kill_at=-1))
    assert not end.stop(5)
    assert not end.wait_idle(clock.now + 30)
    assert set(saying.asked) == {STATUS}
    assert end.problem == "the launcher says that it runs, and the lease was over before it could be stopped"


def test_a_start_that_outlives_its_lease_is_stopped_once_it_is_answered(
    saying: Saying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saying.answer = IDLE
    saying.to[START] = (200, {}, {"cdp_url": "ws://127.0.0.1:1/none"})
    saying.hold[START] = answer = threading.Event()
    lasting = lease(tmp_path, deadline=-1, kill_at=60)
    over = lasting.over

    def then_answer() -> str:
        answer.set()
        return over()

    monkeypatch.setattr(lasting, "over", then_answer)  # the answer comes once nobody waits for it
    refused = refusal(LauncherEnd(saying.described("http"), lasting))
    assert saying.asked == [STATUS, START, STOP, STATUS]
    assert (refused.reason, refused.proof) == (Reason.LEASE_LOST, None)
    assert "passed while its launcher started the profile; the profile was stopped again" in refused.message


def test_idle_proves_nothing_while_a_start_is_under_way(
    saying: Saying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_end, "LAST_STOP_SECONDS", 59.5)
    saying.answer = IDLE
    saying.hold[START] = answer = threading.Event()
    refused = refusal(LauncherEnd(saying.described("http"), lease(tmp_path, deadline=-1, kill_at=60)))
    answer.set()
    assert saying.asked == [STATUS, START, STOP]
    assert refused.reason == Reason.LEASE_LOST
    assert "whether the profile runs is not known (its start was not answered)" in refused.message
    _refuse(refused, str(tmp_path), None)
    report = read_report(tmp_path)
    assert report is not None
    facts = unopened_facts(report, begun=True, final_url=None, throwaway=False, evidence_saved=True)
    assert (facts.browser, in_doubt({"keeper": report_summary(report, completed=False)})) == (Browser.NOT_PROVEN, True)


def test_after_a_lost_answer_idle_has_to_be_said_twice(saying: Saying, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    saying.answer = IDLE
    saying.hold[START] = answer = threading.Event()
    described = {**saying.described("http"), "start_seconds": 0.1}
    refused = refusal(LauncherEnd(described))
    answer.set()
    assert saying.asked == [STATUS, START, STOP, STATUS, STATUS, STATUS, STATUS]
    assert "the profile was stopped again" in refused.message


@pytest.mark.parametrize(
    ("driver", "to", "asked"),
    [
        ("http", {STATUS: (503, {}, {})}, ["status", "start", "status", "stop", "status"]),
        ("gologin", {}, ["start", "stop", "stop"]),
    ],
)
def test_a_start_that_cannot_be_found_out_about_is_asked_about_again(
    saying: Saying, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: str, to: dict[str, Any], asked: list[str]
) -> None:
    """A gateway gave up on it, and then the launcher fell silent."""
    Clock(monkeypatch)
    saying.then = [IDLE] if driver == "http" else []
    saying.to = to
    saying.answer = (504, {}, {"message": "gateway timeout"})
    end = LauncherEnd({**saying.described(driver), "idle_seconds": 1.0})
    refused = refusal(end)
    assert refused.reason == Reason.BROWSER_LAUNCH_FAILED
    said = [path.rpartition("/")[2].removesuffix("-profile") for path in saying.asked]
    assert said[: len(asked)] == asked
    _refuse(refused, str(tmp_path), None)
    report = read_report(tmp_path)
    assert report is not None
    assert (report.no_browser, in_doubt({"keeper": report_summary(report, completed=False)})) == (False, True)


def test_a_start_that_cannot_be_inspected_is_stopped(saying: Saying) -> None:
    """GoLogin has no status: after an error its stop has to do."""
    saying.answer = (200, {}, {})
    saying.to["/browser/start-profile"] = (502, {}, {})
    refused = saying.refusal("gologin")
    assert (refused.reason, refused.proof) == (Reason.BROWSER_LAUNCH_FAILED, None)
    assert saying.asked == ["/browser/start-profile", "/browser/stop-profile"]


@pytest.mark.parametrize(("headers", "calls"), [({}, 5), ({"Retry-After": "60"}, 1), ({"Retry-After": "12"}, 3)])
def test_a_429_at_the_end_of_a_run_is_not_answered_with_more_calls(
    saying: Saying, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], calls: int
) -> None:
    clock = Clock(monkeypatch)
    saying.answer = (429, headers, {})
    end = LauncherEnd(saying.described("http"))
    assert not end.stop(20)
    assert not end.stop(20)
    assert not end.wait_idle(clock.now + 30)
    assert (len(saying.asked), set(saying.asked) <= {STOP, STATUS}) == (calls, True), saying.asked
    assert end.calm_seconds > 0
    assert "too many requests" in end.problem


def test_after_a_429_the_profile_is_stopped_when_the_launcher_takes_calls_again(
    saying: Saying, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    saying.answer = IDLE
    saying.then = [(429, {"Retry-After": "7"}, {})]
    end = LauncherEnd(saying.described("http"))
    assert not end.stop(20)
    assert end.wait_idle(clock.now + 30)
    assert (saying.asked, clock.now >= 1007, end.stopped, end.calm_seconds) == ([STOP, STOP, STATUS], True, True, 0)
