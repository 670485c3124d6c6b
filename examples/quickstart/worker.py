"""A worker by hand: report, claim, renew, run, settle, until there is nothing to do.

`python worker.py --die` is killed in the middle of its first job, to show what happens then.
"""

import asyncio
import os
import signal
import sys
from dataclasses import replace

from leasekeeper import Client, Fail, LeaseLost, connect
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.core.workers import WorkerReport
from leasekeeper.ports import ClaimRequest, Grant
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.heartbeat import Heartbeat, KeptLease
from leasekeeper.stores import open_store

TASKS = ("sync_orders",)


async def work() -> None:
    async with connect() as client:
        name, process = client.worker_id, f"{client.worker_id}-{os.urandom(4).hex()}"
        policy = client.config.policy
        heartbeat = Heartbeat(lambda: open_store(client.config.store, policy=policy), policy.timing)
        report = WorkerReport(worker_id=name, incarnation=process, pool="default", tasks=TASKS)
        request = ClaimRequest(worker_id=name, incarnation=process, tasks=TASKS)
        try:
            while True:
                await client.store.report(report)  # also frees jobs that waited for a worker of this task
                sent_at = boot_time()  # the lease is counted from when it was asked for
                grants = await client.store.claim(request)
                if not grants:
                    print("nothing to do")
                    return
                for grant in grants:
                    kept = heartbeat.keep(grant.lease, sent_at, print)
                    try:
                        await run(client, grant, kept)
                    finally:
                        heartbeat.drop(kept)
        finally:
            await asyncio.to_thread(heartbeat.close)
            await client.store.report(replace(report, stopping=True))


async def run(client: Client, grant: Grant, kept: KeptLease) -> None:
    """One job, from its lease to its ending."""
    ref = grant.lease.ref
    try:
        ending = Ending(ref=ref, output=await task(client, grant, kept), facts=EndFacts(browser=Browser.NONE))
    except LeaseLost as lost:
        print(lost)  # the lease is lost: nothing to settle
        return
    except Fail as fail:
        facts = EndFacts(browser=Browser.NONE)
        ending = Ending(ref=ref, reason=fail.reason, message=fail.detail, facts=facts)
    except Exception as error:
        # EndFacts() is full of doubt, so the profile leaves the rotation.
        ending = Ending(ref=ref, reason="TASK_ERROR", message=type(error).__name__, facts=EndFacts())
    (settled,) = await client.store.settle([ending])
    print(f"lease {settled.lease_id}: job {settled.job_state}, profile {settled.profile_state}")


async def task(client: Client, grant: Grant, kept: KeptLease) -> dict[str, object]:
    """What the job is about. Yours drives a browser here."""
    print(f"lease {grant.lease.lease_id}: attempt {grant.job.attempt if grant.job else 1}")
    kept.check()
    await client.store.checkpoint(grant.lease.ref, "dashboard_open", url="https://shop.example/dashboard")
    if "--die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"orders": 3}


if __name__ == "__main__":
    asyncio.run(work())
