"""`up` with a job that has a callback: what its receiver finds when it is called."""

import asyncio
from datetime import timedelta
from pathlib import Path

from leasekeeper.app import App, Run
from leasekeeper.client import connect
from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.profiles import Lane, ProfileState
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.up import work
from leasekeeper.runtime.worker import WorkerOptions
from leasekeeper.stores import migrate
from tests.conformance.world import fleet, profile
from tests.webhooks.receiver import SECRET, receiving


async def test_a_receiver_is_reported_when_the_job_its_evidence_and_its_profile_are_safe(
    store_url: str, tmp_path: Path
) -> None:
    app = App(
        store=store_url, data_dir=str(tmp_path), poll_every=0.1, webhook_secret=SECRET, webhook_networks="127.0.0.1"
    )

    @app.task("visit")
    async def visit(run: Run) -> dict[str, str]:
        await run.page.goto("data:text/html,<title>done</title>")
        return {"title": await run.page.title()}

    await migrate(store_url)
    stop = Shutdown(timedelta(seconds=30))
    async with connect(store_url) as client, receiving() as receiver:
        await client.store.apply(fleet(profile("p1")), actor="ann")
        working = asyncio.create_task(work(app, WorkerOptions(), sweep=True, stop=stop))
        try:
            submitted = await client.submit("visit", profile="p1", callback_url=receiver.url)
            came = asyncio.create_task(receiver.came.wait())
            await asyncio.wait({came, working}, return_when=asyncio.FIRST_COMPLETED)
            job = await client.get(Job, submitted.job.job_id)
            assert job.run_id is not None
            run = await client.get(RunRecord, job.run_id)
            lane = await client.get(Lane, "p1")
        finally:
            stop.ask()
            await working
    (message,) = receiver.messages
    assert message.signed_with(SECRET)
    assert message.said["type"] == "job.completed"
    assert message.said["data"]["job_id"] == job.job_id
    assert (job.state, lane.state) == (JobState.COMPLETED, ProfileState.AVAILABLE)
    assert run.evidence
