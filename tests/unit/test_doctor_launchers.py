"""`leasekeeper doctor` on launchers: who does not answer, and limits that the plan does not allow."""

from typing import Any

import pytest

from leasekeeper.core.doctor.findings import Status
from leasekeeper.core.doctor.launcher_checks import LauncherFacts, judge_launchers


@pytest.mark.parametrize(
    ("facts", "status", "says"),
    [
        ({}, Status.OK, "no launcher reports what its plan allows"),
        ({"plan": 5, "max_running": 5, "limits": {"mlx": 3}}, Status.OK, "the limits fit it"),
        ({"plan": 5, "limits": {"a": 2, "b": 3}}, Status.OK, "the limits fit it"),
        ({"plan": 5, "max_running": 6}, Status.WARN, "mlx allows 5 at once, declared: max_running 6"),
        ({"plan": 5, "limits": {"a": 2, "b": None}}, Status.WARN, "no max_running, pool a 2, pool b without a limit"),
        ({"plan": 5, "limits": {"a": 3, "b": 3}}, Status.WARN, "pool a 3, pool b 3"),
        ({"problem": "no response from http://x", "plan": 5}, Status.FAIL, "mlx: no response from http://x"),
    ],
)
def test_a_launcher_is_judged(facts: dict[str, Any], status: Status, says: str) -> None:
    verdict = judge_launchers([LauncherFacts(launcher_id="mlx", **facts)])
    assert (verdict.status, says in verdict.found) == (status, True), verdict.found


def test_a_fleet_without_launchers_is_skipped() -> None:
    assert judge_launchers([]).status is Status.SKIP
