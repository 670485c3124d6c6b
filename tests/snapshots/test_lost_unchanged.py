"""A worker that vanished: its machine proves that the directory is no newer than the snapshot, or says nothing."""

import os
from pathlib import Path

import pytest

from leasekeeper.browsers.keeper.fence_file import lock_directory
from leasekeeper.browsers.keeper.report import write_report
from leasekeeper.core.leases import Lease
from leasekeeper.core.settle import LostFacts
from leasekeeper.runtime.lost_runs import LostRunReports
from tests.snapshots.desk import Desk, Machine, desk, use

DEAD = {"clauses": {"graceful": False, "processes_gone": True}, "failing_clause": "graceful"}
ALIVE = {"clauses": {"graceful": False, "processes_gone": False}, "failing_clause": "processes_gone"}


async def facts_after(
    at: Desk, machine: Machine, text: str | None, *, proof: object = DEAD, bring: bool = True
) -> tuple[LostFacts, Lease, LostRunReports]:
    """What the machine says of a run whose worker vanished after the browser wrote `text`."""
    grant, kept = await at.lease(machine)
    if bring:
        await machine.snapshots.bring(grant, kept)
    use(machine.directory(), grant, text)
    lease, reports = grant.lease, LostRunReports(machine.data)
    reports.ledger.note(lease.run_id, lease.lease_id)
    folder = machine.data / "runs" / lease.run_id
    folder.mkdir(parents=True)
    names = {"profile_id": "p1", "run_id": lease.run_id, "lease_id": lease.lease_id, "token": lease.token}
    write_report(str(folder), **names, started_at=1.0, cause="worker_gone", proof=proof)
    facts = await reports.facts(lease)
    await at.end(kept)
    return facts, lease, reports


@pytest.mark.parametrize(
    ("text", "proof", "unchanged"), [(None, DEAD, True), ("another session", DEAD, False), (None, ALIVE, False)]
)
async def test_a_directory_is_the_snapshot_still_only_if_nothing_in_it_changed_and_the_browser_is_dead(
    sqlite_url: str, tmp_path: Path, text: str | None, proof: object, unchanged: bool
) -> None:
    async with desk(sqlite_url, tmp_path, f"file://{tmp_path}/place") as at:
        a, b = at.machine("a"), at.machine("b")
        await at.run(a, "session")
        assert at.newest is not None
        # Also where the snapshot was downloaded.
        for machine in (a, b):
            facts, _, _ = await facts_after(at, machine, text, proof=proof)
            assert facts.reported_by == "keeper"
            assert facts.same_as == (at.newest.token if unchanged else None)
            assert LostFacts.recalled(None, facts.kept()).same_as == facts.same_as


async def test_a_change_that_keeps_size_and_time_of_a_file_is_seen(sqlite_url: str, tmp_path: Path) -> None:
    async with desk(sqlite_url, tmp_path, f"file://{tmp_path}/place") as at:
        a = at.machine("a")
        await at.run(a, "session")
        cookies = a.directory() / "Default/Cookies"
        before = cookies.stat()
        cookies.write_text("SESSION")
        os.utime(cookies, ns=(before.st_atime_ns, before.st_mtime_ns))
        facts, _, _ = await facts_after(at, a, None, bring=False)
        assert facts.same_as is None


async def test_a_directory_that_is_locked_is_compared_later_and_one_that_was_opened_since_never(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with desk(sqlite_url, tmp_path, f"file://{tmp_path}/place") as at:
        a = at.machine("a")
        await at.run(a, "session")
        assert at.newest is not None
        _, lease, _ = await facts_after(at, a, None)
        later = LostRunReports(a.data)
        lock = lock_directory(str(a.directory()))
        assert ((await later.facts(lease)).reported_by, (await later.facts(lease)).same_as) == ("keeper", None)
        os.close(lock)
        assert (await later.facts(lease)).same_as == at.newest.token
        await at.run(a, None)
        assert (await LostRunReports(a.data).facts(lease)).same_as is None
