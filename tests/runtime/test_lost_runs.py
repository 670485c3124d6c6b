"""What a keeper's report is taken for: the word on the run that it was left for, and on no other."""

import hashlib
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import RunRecord
from leasekeeper.browsers.keeper.report import write_report
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.leases import Lease, Purpose
from leasekeeper.errors import StoreUnavailable
from leasekeeper.evidence.files import MAX_BYTES
from leasekeeper.evidence.folder import FolderEvidence
from leasekeeper.ports import LeaseRequest, Store
from leasekeeper.runtime import evidence as run_evidence
from leasekeeper.runtime import lost_runs
from leasekeeper.stores import open_store
from tests.conformance.world import fleet, profile

PROOF = {"clauses": {"graceful": True, "processes_gone": True}, "failing_clause": ""}
REQUEST = LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId("w"), incarnation="w-1", purpose=Purpose.API)


def reported(data: Path, run_id: str, lease: Lease) -> lost_runs.LostRunReports:
    """A machine on which a keeper has reported on this run."""
    messages = lost_runs.LostRunReports(data)
    messages.ledger.note(run_id, lease.lease_id)
    folder = data / "runs" / run_id
    folder.mkdir(parents=True)
    names = {"run_id": run_id, "lease_id": lease.lease_id, "token": lease.token}
    (folder / "last.png").write_bytes(b"picture")
    write_report(str(folder), **names, started_at=1.0, cause="worker_gone", proof=PROOF, screenshot="last.png")
    return messages


@pytest.mark.parametrize("ours", [True, False])
async def test_a_report_counts_for_its_run_and_not_for_the_name_of_its_lease(
    store_url: str, tmp_path: Path, ours: bool
) -> None:
    """A store that was made anew, or restored, gives out the names of leases a second time."""
    ahead = timedelta(0)
    store = await open_store(store_url, clock=lambda real: real + ahead)
    try:
        await store.apply(fleet(profile("p1")), actor="test")
        lease = (await store.acquire(REQUEST)).lease
        ahead = timedelta(hours=1)
        assert len(await store.expire(seen=(await store.check()).now)) == 1
        messages = reported(tmp_path, lease.run_id if ours else "01a1e1a7-d9fa-7081-988b-181cbd6564a8", lease)
        assert await messages.deliver(store) == int(ours)
        assert ("keeper" in (await store.get(RunRecord, lease.run_id)).evidence) is ours
    finally:
        await store.close()


async def held(url: str) -> tuple[Store, Lease]:
    store = await open_store(url)
    await store.apply(fleet(profile("p1")), actor="test")
    return store, (await store.acquire(REQUEST)).lease


async def test_a_screenshot_is_hashed_once_and_not_in_the_event_loop(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sweep asks again while the lock-delay passes: a picture of some megabytes must not stop the loop."""
    hashed_in: list[threading.Thread] = []

    def sha256(*arguments: bytes) -> Any:
        hashed_in.append(threading.current_thread())
        return real(*arguments)

    real = hashlib.sha256
    store, lease = await held(sqlite_url)
    try:
        messages = reported(tmp_path, lease.run_id, lease)
        monkeypatch.setattr(hashlib, "sha256", sha256)
        first = await messages.facts(lease)
        assert [await messages.facts(lease) for _ in range(3)] == [first] * 3
        assert await messages.deliver(store) == 0
        assert len(hashed_in) == 1
        assert threading.current_thread() not in hashed_in
        artifacts: Any = first.evidence["artifacts"]
        assert artifacts[0]["sha256"] == real(b"picture").hexdigest()
    finally:
        await store.close()


def attach_files(folder: Path) -> None:
    """What a task attached, and what lies beside it that it did not, or not completely."""
    (folder / "invoice.pdf").write_bytes(b"paid")
    (folder / "rows.csv").write_bytes(b"1;2")
    (folder / ".part-0a1b").write_bytes(b"half")
    (folder / "status.json").write_bytes(b"{}")
    (folder / "link.txt").symlink_to("invoice.pdf")
    (folder / "profile").mkdir()
    with (folder / "large.bin").open("wb") as large:
        large.truncate(MAX_BYTES + 1)


async def test_the_record_of_a_lost_run_names_the_files_that_its_task_attached(sqlite_url: str, tmp_path: Path) -> None:
    store, lease = await held(sqlite_url)
    try:
        messages = reported(tmp_path, lease.run_id, lease)
        before = await messages.facts(lease)
        attach_files(tmp_path / "runs" / lease.run_id)
        artifacts: Any = (await messages.facts(lease)).evidence["artifacts"]
        assert [each["name"] for each in artifacts] == ["last.png", "invoice.pdf", "rows.csv"]
        assert artifacts[:1] == before.evidence["artifacts"]
        assert artifacts[1]["sha256"] == hashlib.sha256(b"paid").hexdigest()
    finally:
        await store.close()


async def test_every_file_of_a_lost_run_is_delivered(sqlite_url: str, tmp_path: Path) -> None:
    ahead = timedelta(0)
    store = await open_store(sqlite_url, clock=lambda real: real + ahead)
    try:
        await store.apply(fleet(profile("p1")), actor="test")
        lease = (await store.acquire(REQUEST)).lease
        messages = reported(tmp_path, lease.run_id, lease)
        messages.place = FolderEvidence(tmp_path / "kept")
        folder = tmp_path / "runs" / lease.run_id
        attach_files(folder)
        assert "unsaved" not in (await messages.facts(lease)).evidence
        names = ["invoice.pdf", "last.png", "rows.csv"]
        assert sorted(path.name for path in (tmp_path / "kept" / lease.run_id).iterdir()) == names
        ahead = timedelta(hours=1)
        assert len(await store.expire(seen=(await store.check()).now)) == 1
        assert await messages.deliver(store) == 1
        run: Any = await store.get(RunRecord, lease.run_id)
        assert sorted(each["name"] for each in run.evidence["artifacts"]) == names
        assert not [name for name in names if (folder / name).exists()]
    finally:
        await store.close()


@pytest.mark.parametrize(("limit", "value"), [("MAX_LOST_FILES", 1), ("MAX_LOST_BYTES", 4)])
async def test_the_record_of_a_lost_run_names_only_so_many_files(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """They are hashed before the run is resolved: hundreds of large ones would keep every lost run waiting."""
    monkeypatch.setattr(run_evidence, limit, value)
    store, lease = await held(sqlite_url)
    try:
        messages = reported(tmp_path, lease.run_id, lease)
        attach_files(tmp_path / "runs" / lease.run_id)
        evidence: Any = (await messages.facts(lease)).evidence
        assert [each["name"] for each in evidence["artifacts"]] == ["last.png", "invoice.pdf"]
        assert evidence["unsaved"].endswith("the rest (1) is only in the run's folder on its machine")
    finally:
        await store.close()


class SlowEvidence(FolderEvidence):
    """Each file takes 6 s to arrive, on a clock of its own."""

    now = 1_000.0

    async def put(self, *arguments: Any, **facts: Any) -> None:
        await super().put(*arguments, **facts)
        self.now += 6


async def test_the_files_of_a_lost_run_have_one_timeout(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What did not arrive is not named. It may still arrive before the run is resolved."""
    store, lease = await held(sqlite_url)
    try:
        messages = reported(tmp_path, lease.run_id, lease)
        messages.place = slow = SlowEvidence(tmp_path / "kept")
        monkeypatch.setattr(lost_runs, "boot_time", lambda: slow.now)
        attach_files(tmp_path / "runs" / lease.run_id)
        evidence: Any = (await messages.facts(lease)).evidence
        assert [each["name"] for each in evidence["artifacts"]] == ["last.png", "invoice.pdf"]
        assert evidence["unsaved"] == "evidence rows.csv could not be delivered: the files before it took 10 s"
        later: Any = (await messages.facts(lease)).evidence
        assert [each["name"] for each in later["artifacts"]] == ["last.png", "invoice.pdf", "rows.csv"]
        assert "unsaved" not in later
    finally:
        await store.close()


async def test_a_report_that_was_written_anew_is_read_anew(sqlite_url: str, tmp_path: Path) -> None:
    store, lease = await held(sqlite_url)
    try:
        messages = reported(tmp_path, lease.run_id, lease)
        before = await messages.facts(lease)
        folder = tmp_path / "runs" / lease.run_id
        (folder / "last.png").write_bytes(b"another picture")
        names = {"run_id": lease.run_id, "lease_id": lease.lease_id, "token": lease.token}
        write_report(str(folder), **names, started_at=1.0, cause="deadline", proof=PROOF, screenshot="last.png")
        assert (await messages.facts(lease)).evidence != before.evidence
    finally:
        await store.close()


async def test_a_store_that_is_away_is_not_asked_while_there_is_no_report(sqlite_url: str, tmp_path: Path) -> None:
    """A worker's own runs are in the ledger too: they are no reports that could not be delivered."""
    store, lease = await held(sqlite_url)
    messages = lost_runs.LostRunReports(tmp_path)
    messages.ledger.note(lease.run_id, lease.lease_id)
    await store.close()
    assert await messages.deliver(store) == 0
    reported(tmp_path, lease.run_id, lease)
    with pytest.raises(StoreUnavailable):
        await messages.deliver(store)
