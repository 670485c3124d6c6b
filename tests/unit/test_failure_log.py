"""What fails again and again is logged rarely."""

import logging

import pytest

from leasekeeper.errors import StoreError, StoreUnavailable
from leasekeeper.runtime.failure_log import LOG_EVERY_SECONDS, FailureLog

AWAY = StoreUnavailable("cut")


class Clock:
    """A clock that stands where it was put."""

    now = 1.0

    def __call__(self) -> float:
        return self.now


def test_each_kind_is_reported_once_then_one_now_and_then_and_once_that_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    trouble = FailureLog(clock)
    trouble.over("no claim")
    for _ in range(3):
        trouble.again("no claim", AWAY)
        trouble.again("sweep failed", AWAY)
    trouble.again("no claim", StoreError("of another kind"))
    clock.now += LOG_EVERY_SECONDS
    for _ in range(3):
        trouble.again("sweep failed", AWAY)
        trouble.again("no claim", AWAY)
    trouble.over("leases could not be renewed")
    trouble.over("no claim")
    trouble.over("sweep failed")
    assert [record.getMessage() for record in caplog.records] == [
        "no claim, retrying: cut",
        "sweep failed, retrying: cut",
        "no claim, retrying: of another kind",
        "sweep failed, retrying: cut",
        "the store is reachable again",
    ]


def test_a_failure_after_that_is_reported_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trouble = FailureLog(Clock())
    for _ in range(2):
        trouble.again("no claim", OSError("no browser"))
        trouble.over("no claim")
    assert [record.getMessage() for record in caplog.records] == [
        "no claim, retrying: no browser",
        "this works again: no claim",
    ] * 2
