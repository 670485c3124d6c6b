"""The phases of a run as bars. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Any

from leasekeeper.core.ids import AccountId, LeaseId, ProfileId, RunId, Token, WorkerId
from leasekeeper.core.leases import LeaseStatus, Purpose, RunRecord
from leasekeeper.service.pages.runs import waterfall

BEGAN = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOW = BEGAN + timedelta(seconds=100)


def run(**fields: Any) -> RunRecord:
    return RunRecord(
        run_id=RunId("r1"),
        job_id=None,
        task="visit",
        attempt=1,
        routing_key="profile:p1",
        account_id=AccountId("shop"),
        profile_id=ProfileId("p1"),
        proxy_id=None,
        worker_id=WorkerId("w1"),
        lease_id=LeaseId("p1:1"),
        token=Token(1),
        purpose=Purpose.JOB,
        status=LeaseStatus.EXPIRED,
        acquired_at=BEGAN,
        **fields,
    )


def bars(record: RunRecord) -> list[tuple[str, float]]:
    return [(phase.name, phase.length) for phase in waterfall(record, BEGAN - timedelta(seconds=5), NOW)]


def lost(started: float, ended: float) -> RunRecord:
    """A run whose lease was over after 60 s, by its keeper's report: seconds after the lease began, on its clock."""
    keeper = {"started_at": BEGAN.timestamp() + started, "ended_at": BEGAN.timestamp() + ended}
    return run(ended_at=BEGAN + timedelta(seconds=60), evidence={"keeper": keeper})


def test_phases_follow_each_other_and_what_was_not_measured_belongs_to_the_lease() -> None:
    done = run(
        ended_at=BEGAN + timedelta(seconds=4), timings={"open": 1.0, "task": 2.0, "evidence": 0.25, "close": 0.5}
    )
    assert bars(done) == [
        ("wait", 5.0),
        ("lease", 0.25),
        ("launch", 1.0),
        ("task", 2.0),
        ("evidence", 0.25),
        ("release", 0.5),
    ]


def test_a_run_that_goes_on_shows_how_long_its_lease_was_held() -> None:
    assert bars(run()) == [("wait", 5.0), ("held", 100.0)]


def test_the_keeper_says_when_the_browser_of_a_lost_run_began_and_ended() -> None:
    assert bars(lost(2, 42)) == [("wait", 5.0), ("lease", 2.0), ("browser", 40.0), ("resolving", 18.0)]


def test_a_keeper_whose_clock_is_wrong_makes_no_phase_longer_than_the_lease() -> None:
    assert bars(lost(-300, -260)) == [("wait", 5.0), ("lease", 0.0), ("browser", 40.0), ("resolving", 20.0)]
    assert bars(lost(300, 340)) == [("wait", 5.0), ("lease", 60.0), ("browser", 0.0), ("resolving", 0.0)]
