"""Lost leases, as tables: until when one waits, who names that time, and which of two reports counts. No store."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from leasekeeper.core.granting import changes_at
from leasekeeper.core.jobs import Backoff
from leasekeeper.core.lanes import LaneFacts
from leasekeeper.core.launchers import LauncherSaid
from leasekeeper.core.leases import Lease, LeaseStatus, RunRecord
from leasekeeper.core.profiles import ProfileState, ReleasePolicy
from leasekeeper.core.resolving import found_out, resolve, waits_until
from leasekeeper.core.settle import LostFacts
from leasekeeper.core.why import resolution
from tests.unit.records import NOW, a_lane, a_lease, a_profile, an_account, before, seconds

# Its lock-delay is 15 s.
LOST = a_lease(status=LeaseStatus.EXPIRED, expires_at=before(5), ended_at=before(5), unresolved=True)
ENDED, DELAY_OVER = before(5), before(5) + seconds(15)
P = ReleasePolicy

WAITS: list[tuple[dict[str, Any], datetime | None]] = [
    ({"release_policy": P.QUARANTINE}, None),
    ({"release_policy": P.REVIEW}, None),
    ({"release_policy": P.RESTORE}, DELAY_OVER),
    ({"release_policy": P.RECOVER}, DELAY_OVER),
    ({"release_policy": P.RESTORE, "open_section": "pay"}, None),
    ({"release_policy": P.RECOVER, "open_section": "pay"}, None),
]


def lost(**changes: Any) -> Lease:
    return replace(LOST, **changes)


def resolved_at(lease: Lease, now: datetime) -> bool:
    settlement = resolve(lease, None, LostFacts(), now=now, jitter=0.0, backoff=Backoff(), proxy_id=None)
    return settlement is not None


@pytest.mark.parametrize(("lease", "until"), WAITS)
def test_only_a_profile_that_may_come_back_waits_for_the_lock_delay(
    lease: dict[str, Any], until: datetime | None
) -> None:
    gone = lost(**lease)
    assert waits_until(gone) == until
    assert resolved_at(gone, ENDED) is (until is None)
    assert not resolved_at(gone, DELAY_OVER - seconds(1)) or until is None
    assert resolved_at(gone, DELAY_OVER)


@pytest.mark.parametrize(("lease", "until"), WAITS)
def test_who_asks_hears_the_time_at_which_it_is_resolved(lease: dict[str, Any], until: datetime | None) -> None:
    gone = lost(**lease)
    facts = LaneFacts(
        lane=a_lane(state=ProfileState.STALE), profile=a_profile(), account=an_account(), proxy=None, open=[gone]
    )
    assert changes_at(facts) == (until or ENDED)
    assert resolution(gone).at == until


def test_a_profile_that_is_leased_changes_when_the_first_lease_expires() -> None:
    live = [a_lease(), a_lease(expires_at=NOW + seconds(20))]
    facts = LaneFacts(
        lane=a_lane(state=ProfileState.LEASED), profile=a_profile(), account=an_account(), proxy=None, open=live
    )
    assert changes_at(facts) == NOW + seconds(20)
    facts.open = []
    assert changes_at(facts) is None


URL = "https://shop.example/orders"
REPORT = LostFacts(final_url=URL, browser_dead=True, reported_by="keeper", evidence={"console": ["late"]})
OWN = {"screenshot": "end.png"}
SILENT = LostFacts(launcher=LauncherSaid.SILENT, problem="refused")


def run_of(lease: Lease, evidence: dict[str, object], final_url: str | None = URL) -> RunRecord:
    return RunRecord(
        run_id=lease.run_id,
        job_id=lease.job_id,
        task=lease.task,
        attempt=1,
        routing_key=lease.routing_key,
        account_id=lease.account_id,
        profile_id=lease.profile_id,
        proxy_id=lease.proxy_id,
        worker_id=lease.worker_id,
        lease_id=lease.lease_id,
        token=lease.token,
        purpose=lease.purpose,
        status=lease.status,
        final_url=final_url,
        evidence=evidence,
        acquired_at=lease.acquired_at,
    )


@pytest.mark.parametrize(
    ("kept", "now", "known"),
    [
        ({}, LostFacts(), LostFacts()),
        ({}, REPORT, REPORT),
        # Whoever has no report goes by the one that is kept.
        (REPORT.kept(), LostFacts(), REPORT),
        (REPORT.kept(), SILENT, replace(REPORT, launcher=LauncherSaid.SILENT, problem="refused")),
        # Of two reports the later one counts, and so does what somebody saw without a report.
        (REPORT.kept(), replace(REPORT, browser_dead=False), replace(REPORT, browser_dead=False)),
        (REPORT.kept(), LostFacts(browser_dead=True), LostFacts(browser_dead=True)),
    ],
)
def test_the_report_of_a_lost_run_counts_for_whoever_decides(
    kept: dict[str, object], now: LostFacts, known: LostFacts
) -> None:
    assert found_out(LOST, run_of(LOST, kept), now)[0] == known


@pytest.mark.parametrize(
    ("now", "final_url"), [(LostFacts(), None), (SILENT, URL), (replace(SILENT, final_url="https://b/"), "https://b/")]
)
def test_the_evidence_of_a_released_run_is_no_report(now: LostFacts, final_url: str | None) -> None:
    released = lost(status=LeaseStatus.RELEASED)
    facts, evidence = found_out(released, run_of(released, {**OWN, **REPORT.kept()}), now)
    assert (facts.final_url, facts.browser_dead, facts.reported_by) == (final_url, False, "")
    assert evidence == {**OWN, **REPORT.kept()}


def test_a_report_is_added_to_the_evidence_that_a_run_has() -> None:
    facts, evidence = found_out(LOST, run_of(LOST, dict(OWN)), REPORT)
    assert evidence == {**OWN, **REPORT.kept()}
    assert found_out(LOST, run_of(LOST, dict(OWN)), LostFacts())[1] == OWN
    assert facts == REPORT
