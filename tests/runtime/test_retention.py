"""Old evidence on disk: what a sweep deletes, and what it leaves because somebody still needs it."""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from leasekeeper import Fail, connect
from leasekeeper.client import Client
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.evidence.files import EvidenceFolder
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.runtime.sweeper import sweep_here
from tests.runtime.stage import CALM, furnish


def old_evidence(data: Path, run_id: str) -> Path:
    """A file that a run left long ago."""
    folder = EvidenceFolder(data / "runs", run_id)
    folder.create()
    folder.write("final.png", b"image")
    for path in (folder.path / "final.png", folder.path):
        os.utime(path, (0, 0))
    return folder.path


async def failed_run(client: Client) -> str:
    """A run that ended so that a person has to look."""
    with suppress(Fail):
        async with client.lease("p1") as lease:
            raise Fail("LOGIN_REQUIRED", "the shop shows its form")
    return lease.lease.run_id


async def sweep(client: Client, data: Path) -> None:
    browsers = replace(client.config.browsers, data_dir=str(data))
    await sweep_here(client.store, replace(client.config, browsers=browsers))


async def test_evidence_stays_until_a_person_has_looked(store_url: str, tmp_path: Path) -> None:
    async with connect(store_url, **CALM) as client:
        await furnish(client)
        kept = old_evidence(tmp_path, await failed_run(client))
        gone = old_evidence(tmp_path, "01a1e1a7-d9fa-7081-988b-181cbd6564a8")
        await sweep(client, tmp_path)
        assert (kept.exists(), gone.exists()) == (True, False)
        await client.store.decide(
            Decision(target=Target.PROFILE, id="p1", action=Action.CLEAR, note="logged in", actor="ann")
        )
        await sweep(client, tmp_path)
        assert not kept.exists()


async def test_evidence_stays_where_nobody_can_tell_what_is_under_way(sqlite_url: str, tmp_path: Path) -> None:
    async with connect(sqlite_url, **CALM) as client:
        await furnish(client)
        run_id = "01a1e1a7-d9fa-7081-988b-181cbd6564a8"
        kept = old_evidence(tmp_path, run_id)
        Ledger(tmp_path).note(run_id, "lease")
        (tmp_path / "open" / run_id).write_bytes(b"\xff")
        await sweep(client, tmp_path)
        assert kept.exists()
        (tmp_path / "open" / run_id).unlink()
        (tmp_path / "open").rmdir()
        (tmp_path / "open").write_text("not a folder")
        await sweep(client, tmp_path)
        assert kept.exists()
