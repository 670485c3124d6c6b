"""A worker that vanished: its machine proves that the directory is no newer than the snapshot, or says nothing."""

import os
from pathlib import Path

import pytest

from leasekeeper.browsers.keeper.fence_file import lock_directory, record_token
from leasekeeper.browsers.keeper.report import write_report
from leasekeeper.core.leases import Lease
from leasekeeper.core.settle import LostFacts
from leasekeeper.runtime.lost_runs import LostRunReports
from leasekeeper.snapshots import unchanged
from leasekeeper.snapshots.contents import Contents, read_contents
from leasekeeper.snapshots.unchanged import snapshot_left_in
from tests.snapshots.two_machines import Machine, TwoMachines, two_machines, use

DEAD = {"clauses": {"graceful": False, "processes_gone": True}, "failing_clause": "graceful"}
ALIVE = {"clauses": {"graceful": False, "processes_gone": False}, "failing_clause": "processes_gone"}


async def facts_after(
    at: TwoMachines, machine: Machine, text: str | None, *, proof: object = DEAD, bring: bool = True
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
    async with two_machines(sqlite_url, tmp_path, f"file://{tmp_path}/place") as at:
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
    async with two_machines(sqlite_url, tmp_path, f"file://{tmp_path}/place") as at:
        a = at.machine("a")
        await at.run(a, "session")
        cookies = a.directory() / "Default/Cookies"
        before = cookies.stat()
        cookies.write_text("SESSION")
        os.utime(cookies, ns=(before.st_atime_ns, before.st_mtime_ns))
        facts, _, _ = await facts_after(at, a, None, bring=False)
        assert facts.same_as is None


async def test_the_comparison_needs_no_lock_and_a_directory_that_was_opened_since_is_never_the_snapshot(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with two_machines(sqlite_url, tmp_path, f"file://{tmp_path}/place") as at:
        a = at.machine("a")
        await at.run(a, "session")
        assert at.newest is not None
        _, lease, _ = await facts_after(at, a, None)
        lock = lock_directory(str(a.directory()))
        assert (await LostRunReports(a.data).facts(lease)).same_as == at.newest.token
        os.close(lock)
        await at.run(a, None)
        assert (await LostRunReports(a.data).facts(lease)).same_as is None


@pytest.mark.parametrize("opened", [False, True])
async def test_while_a_directory_is_compared_its_worker_can_save_it_and_the_next_run_can_open_it(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: bool
) -> None:
    """A sweep finds the keeper's report before the worker has settled: that must not cost the worker its snapshot."""
    async with two_machines(sqlite_url, tmp_path, f"file://{tmp_path}/place") as at:
        a = at.machine("a")
        await at.run(a, "session")
        assert at.newest is not None
        grant, kept = await at.lease(a)
        use(a.directory(), grant, None)

        def meanwhile(directory: Path) -> Contents:
            found = read_contents(directory)
            lock = lock_directory(str(directory))
            if opened:
                record_token(str(directory), grant.lease.token + 1, "p1:9", "the next run")
            os.close(lock)
            return found

        monkeypatch.setattr(unchanged, "read_contents", meanwhile)
        left = snapshot_left_in(a.directory(), grant.lease.run_id, grant.lease.lease_id)
        assert left == (None if opened else at.newest.token)
        await at.end(kept)
