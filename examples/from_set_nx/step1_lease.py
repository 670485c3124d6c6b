"""Step 1: the same list and the same loop, with a lease instead of the lock.

The lease is renewed while the job runs, however long that takes. A worker that dies leaves a profile that nobody gets
before it is clear what happened. Jobs still live in the list alone: one that was popped dies with its worker.
"""

import json
import os
import sys
from typing import Any

import redis
from playwright.sync_api import sync_playwright
from shop_script import place_order

import leasekeeper

JOBS = "shop:jobs"


def run_job(job: dict[str, Any]) -> None:
    with leasekeeper.lease(job["profile_id"]) as lease, sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(**lease.launch_options())
        page = context.pages[0]
        with lease.mutating("place_order"):
            place_order(page, job)
        url = page.url
        context.close()
        lease.closed(final_url=url)


def work_once(client: Any) -> bool:
    """Take one job. False: there was none."""
    popped = client.brpop([JOBS], timeout=1)
    if popped is None:
        return False
    try:
        run_job(json.loads(popped[1]))
    except leasekeeper.ProfileBusy as busy:
        print(busy, file=sys.stderr)
        client.lpush(JOBS, popped[1])
    return True


if __name__ == "__main__":
    with redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as connection:
        while work_once(connection):
            pass
