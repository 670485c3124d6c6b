"""SIGKILL at each step of a download, a swap and an upload: no torn directory, and no older state as the newest."""

import asyncio
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from leasekeeper.browsers.keeper.basis import held_snapshot
from leasekeeper.core.leases import Lease
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.snapshots.contents import read_contents
from tests.snapshots.killed import STEPS
from tests.snapshots.two_machines import TwoMachines, two_machines

REPOSITORY = Path(__file__).parents[2]


async def kill_at(at: TwoMachines, step: str, machine: str, folder: Path) -> None:
    """A process on that machine dies at the step, and its lease is over."""
    stage = folder / "stage"
    stage.write_bytes(pickle.dumps(at.stage(machine)))
    command = [sys.executable, "-m", "tests.snapshots.killed", step, str(stage)]
    died = await asyncio.to_thread(subprocess.run, command, cwd=REPOSITORY, check=False)
    assert died.returncode == -signal.SIGKILL
    (lease,) = (await at.store.find(Lease, {"live": "1"})).items
    await at.store.settle([Ending(ref=lease.ref, facts=EndFacts(browser=Browser.NONE))])


# Daily: half of a download, both sides of the exchange, half of an upload, and an upload that was never settled. What
# lies between them leaves the same files behind.
DAILY = ("half_unpacked", "before_exchange", "after_exchange", "half_uploaded", "remembered")


@pytest.mark.release_if(when=lambda chosen: chosen["step"] not in DAILY)
@pytest.mark.parametrize("step", STEPS)
async def test_whoever_is_killed_leaves_a_whole_directory_and_the_newest_comes_back(
    sqlite_url: str, tmp_path: Path, step: str
) -> None:
    async with two_machines(sqlite_url, tmp_path, f"file://{tmp_path}/shared") as at:
        a, b = at.machine("a"), at.machine("b")
        await at.run(b, "old")
        await at.run(a, "newest")
        assert at.newest is not None
        before = read_contents(b.directory()).digest
        await kill_at(at, step, "b", tmp_path)
        # Whatever is there is whole; only the newest says that it is the newest.
        here = read_contents(b.directory()).digest
        if held_snapshot(str(b.directory())) == at.newest.token:
            assert here == at.newest.contents_hash
        elif STEPS[step][0].endswith(("checkout", "directory_swap")) or "download" in step or "unpacked" in step:
            assert here in (before, at.newest.contents_hash)
        # The run that was killed was never settled: its state is nobody's newest, on no machine.
        for machine in (b, a):
            grant, kept = await at.lease(machine)
            await machine.snapshots.bring(grant, kept)
            assert (machine.directory() / "Default/Cookies").read_text() == "newest"
            assert read_contents(machine.directory()).digest == at.newest.contents_hash
            assert {name for name in machine.beside() if name != ".p1.replaced"} == set()
            await at.end(kept)
