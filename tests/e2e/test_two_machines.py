"""Two machines, one PostgreSQL, one bucket of a real S3 server, real browsers: a session goes wherever its job goes.

Judged from outside: by what the pages find in the session, by the records, and by reading the bucket itself.
"""

import asyncio
import hashlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import Lane, ProfileState, ReleasePolicy
from leasekeeper.core.snapshots import Snapshot, Verdict
from leasekeeper.encryption import new_key
from tests.conformance.world import fleet, profile
from tests.e2e.arena import Arena, arena, late
from tests.runtime.browsing import processes_about
from tests.servers import S3Server
from tests.serving import ServerThread
from tests.snapshots.killed import STEPS, WORKER_STEPS

APP = "tests.e2e.travelling_tasks:app"
IN_A_FOLDER = ("half_uploaded", "uploaded")


@dataclass
class TwoMachines:
    """Machines `a` and `b`: each has a data directory, a name and a worker for the pool of its own name."""

    at: Arena
    key: str
    objects: Callable[[], dict[str, bytes]]
    """What is in the place of snapshots, read without any code of ours."""
    store: str | None = None
    token: str = ""

    def start(self, machine: str, *, pool: str | None = None, dies_at: str | None = None, **more: str) -> None:
        environ = {
            "LEASEKEEPER_DATA_DIR": str(self.at.data / machine),
            "LEASEKEEPER_SECRET_KEY": self.key,
            "LEASEKEEPER_HOME_WAIT": "0",
            "LEASEKEEPER_TOKEN": self.token,
            **more,
        }
        self.at.start(machine, self.store, app=APP, pool=pool or machine, dies_at=dies_at, **environ)

    async def carry(self, machine: str, value: str | None, task: str = "carry", *, priority: int = 0) -> dict[str, Any]:
        """What a run on that machine found in the session. It leaves `value` there."""
        payload: dict[str, Any] = {} if value is None else {"value": value}
        job = await self.at.submit(task=task, pool=machine, priority=priority, **payload)
        done = await self.at.job_when(job, lambda j: j.state in ("completed", "dead", "review"))
        assert done.state == "completed", (done.stop_reason, done.detail)
        (run,) = (await self.at.store.find(RunRecord, {"job_id": job.job_id})).items
        assert run.output is not None
        return dict(run.output)

    async def judge(self) -> None:
        """What the site and the place say: nobody acted in a profile that another had since, and its newest state is
        in the place, whole."""
        acted = sorted((hit.at, int(hit.by.rpartition(":")[2])) for hit in self.at.shop.of_any("/tick"))
        tokens = [token for _, token in acted]
        assert tokens == sorted(tokens)
        newest = (await self.lane()).snapshot
        (saved,) = [each for each in (await self.at.store.find(Snapshot)).items if each.token == newest]
        packed = next(content for key, content in self.objects().items() if key.endswith(saved.place))
        assert (len(packed), hashlib.sha256(packed).hexdigest()) == (saved.packed_bytes, saved.sha256)

    async def lane(self) -> Lane:
        return await self.at.store.get(Lane, "p1")

    def logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.at.data.parent.glob("*.log"))


def in_bucket(s3: S3Server, bucket_url: str) -> Callable[[], dict[str, bytes]]:
    bucket = bucket_url.removeprefix("s3://").partition("/")[0]

    def read() -> dict[str, bytes]:
        client = boto3.client("s3", endpoint_url=s3.endpoint, region_name="us-east-1")
        listed = client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {each["Key"]: client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read() for each in listed}

    return read


@asynccontextmanager
async def two_machines(
    url: str, folder: Path, s3: S3Server, bucket_url: str, policy: ReleasePolicy = ReleasePolicy.QUARANTINE
) -> AsyncIterator[TwoMachines]:
    profiles = (profile("p1", release_policy=policy),)
    async with arena(url, folder, *profiles, home_wait=0.0) as at:
        await at.store.apply(replace(fleet(*profiles), profile_store=bucket_url), actor="test")
        yield TwoMachines(at, new_key(), in_bucket(s3, bucket_url))


def found(value: str | None) -> dict[str, Any]:
    return {"cookie": value, "local": value, "indexed": value, "worker": value is not None}


# Daily 2 alternations: one machine saves, the other brings and saves, the first brings. In a release 200.
@pytest.mark.release_if(when=lambda chosen: chosen["alternations"] > 2)
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("alternations", [2, 200])
async def test_a_session_alternates_between_two_machines(
    store_url: str, tmp_path: Path, s3: S3Server, bucket_url: str, alternations: int
) -> None:
    async with two_machines(store_url, tmp_path, s3, bucket_url) as two:
        two.start("a")
        two.start("b")
        before: str | None = None
        for number in range(alternations):
            value = f"canary-session-{number}"
            assert await two.carry("ab"[number % 2], value) == found(before)
            before = value
        lane = await two.lane()
        assert (lane.state, lane.saved, lane.snapshot) == (ProfileState.AVAILABLE, True, lane.token)
        # A run that changes nothing uploads nothing, wherever it runs.
        count = len(two.objects())
        assert await two.carry("ab"[alternations % 2], None, task="rest") == {"title": ""}
        assert (len(two.objects()), (await two.lane()).snapshot) == (count, lane.snapshot)
        snapshots = (await two.at.store.find(Snapshot, {"profile_id": "p1"}, limit=1000)).items
        assert {each.verdict for each in snapshots} == {Verdict.LOGGED_IN}
        assert {each.machine is not None and each.size_bytes > 0 for each in snapshots} == {True}
        assert not any(b"canary-session" in content or b"SQLite" in content for content in two.objects().values())
        await two.judge()
        shown = two.logs()
        assert (two.key in shown, os.environ["AWS_SECRET_ACCESS_KEY"] in shown) == (False, False)


async def test_a_session_travels_through_a_server_that_keeps_the_snapshots(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    """The workers have neither the store nor the place, only the server's address, a token and the key."""
    own = tmp_path / "server"

    def kept() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in (own / "snapshots").rglob("*") if path.is_file()}

    async with arena(sqlite_url, tmp_path, profile("p1"), home_wait=0.0) as at:
        await at.store.apply(replace(fleet(profile("p1")), profile_store="server"), actor="test")
        served = await asyncio.to_thread(server.serve, sqlite_url, data_dir=str(own), home_wait=0.0)
        try:
            two = TwoMachines(at, new_key(), kept, store=served.url, token=served.token)
            two.start("a")
            two.start("b")
            assert await two.carry("a", "canary-session-1") == found(None)
            assert await two.carry("b", "canary-session-2") == found("canary-session-1")
            assert await two.carry("a", None) == found("canary-session-2")
            await two.judge()
            assert len(two.objects()) >= 2
            assert not any(b"canary-session" in content for content in two.objects().values())
            for worker in at.workers:
                worker.terminate()
            for worker in at.workers:
                assert await asyncio.to_thread(worker.wait, 60) == 0
        finally:
            await asyncio.to_thread(served.close)


# Daily after an upload that was never settled; every step without a browser is in tests/snapshots/test_killed.py.
@pytest.mark.release_if(when=lambda chosen: chosen["step"] != "remembered")
@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("step", [*(each for each in STEPS if each not in IN_A_FOLDER), *WORKER_STEPS])
async def test_a_worker_that_is_killed_on_the_way_costs_its_run_and_nothing_else(
    store_url: str, tmp_path: Path, s3: S3Server, bucket_url: str, step: str
) -> None:
    async with two_machines(store_url, tmp_path, s3, bucket_url, ReleasePolicy.RESTORE) as two:
        two.start("b")
        assert await two.carry("b", "canary-first") == found(None)
        saved = (await two.lane()).snapshot
        two.start("a", dies_at=step)
        job = await two.at.submit(task="carry", pool="a", value="second")
        if step == "settled":  # the last thing that a run needs
            await two.at.job_when(job, lambda j: j.state == "completed")
            assert await two.carry("b", None) == found("second")
            await two.judge()
            return
        lost = await two.at.lane_when(lambda lane: lane.state is ProfileState.AVAILABLE and lane.token > (saved or 0))
        # It goes back by itself to what was settled last; what was uploaded late is nobody's newest.
        assert lost.saved
        # The job heads its lane again, and no worker of its pool is alive: only a more urgent one passes it.
        await two.at.job_when(job, lambda j: j.state in ("queued", "blocked"))
        assert await two.carry("b", None, priority=1) == found("canary-first")
        # The job is tried again, from that state.
        two.start("a")
        await two.at.job_when(job, lambda j: j.state == "completed")
        again = max((await two.at.store.find(RunRecord, {"job_id": job.job_id})).items, key=lambda run: run.attempt)
        assert again.output == found("canary-first")
        assert await two.carry("b", None) == found("second")
        await two.judge()


# Daily a few jobs. In a release enough that both machines take some.
@pytest.mark.release_if(when=lambda chosen: chosen["jobs"] > 3)
@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("jobs", [3, 40])
async def test_jobs_that_both_machines_may_take_find_what_the_one_before_left(
    store_url: str, tmp_path: Path, s3: S3Server, bucket_url: str, jobs: int
) -> None:
    async with two_machines(store_url, tmp_path, s3, bucket_url) as two:
        two.start("a", pool="default")
        two.start("b", pool="default")
        waiting = [await two.at.submit(task="carry", value=f"canary-{number}") for number in range(jobs)]
        for job in waiting:
            await two.at.job_when(job, lambda j: j.state == "completed")
        runs = sorted((await two.at.store.find(RunRecord)).items, key=lambda run: run.token)
        values = [f"canary-{[job.job_id for job in waiting].index(run.job_id)}" for run in runs if run.job_id]
        assert [run.output for run in runs] == [found(before) for before in (None, *values[:-1])]
        await two.judge()


KILLS: dict[str, Callable[[TwoMachines], list[int]]] = {
    "keeper": lambda two: [two.at.keeper()],
    "machine": lambda two: [two.at.workers[-1].pid, *processes_about(str(two.at.data / "a"))],
}


# In a release. Daily: the same kills without a profile store in test_faults.py, what is newest after them in
# tests/conformance/test_snapshots.py.
@pytest.mark.release
@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("who", KILLS)
async def test_what_dies_in_the_middle_of_a_run_leaves_the_newest_snapshot_to_the_other_machine(
    store_url: str, tmp_path: Path, s3: S3Server, bucket_url: str, who: str
) -> None:
    async with two_machines(store_url, tmp_path, s3, bucket_url, ReleasePolicy.RESTORE) as two:
        two.start("b")
        assert await two.carry("b", "canary-first") == found(None)
        before, count = await two.lane(), len(two.objects())
        two.start("a")
        run = await two.at.at_work(await two.at.submit(task="linger", pool="a", value="torn", max_attempts=1))
        # All of them stop before one dies: nobody lives to say what became of the others.
        dying = KILLS[who](two)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in dying:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        assert late(two.at, await two.at.ended(run)) == []
        lane = await two.at.lane_when(lambda lane: lane.state not in (ProfileState.LEASED, ProfileState.STALE))
        if who == "machine":
            assert (lane.state, lane.saved) == (ProfileState.AVAILABLE, True)
        else:
            # Its worker is alive and cannot say where the browser was. The torn directory is the newest until a person
            # gives it up: the other machine does not get the profile before.
            assert (lane.state, lane.saved, lane.snapshot) == (ProfileState.QUARANTINED, False, before.snapshot)
            assert lane.home != before.home
            note = "its keeper was killed"
            restore = Decision(target=Target.PROFILE, id="p1", action=Action.RESTORE, note=note, actor="ann")
            await two.at.store.decide(restore)
        assert len(two.objects()) == count
        assert await two.carry("b", None) == found("canary-first")
