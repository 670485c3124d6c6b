"""Step 0, where many teams are: one list of jobs, and a lock per profile with SET NX EX.

python step0_recipe.py WORKER  (REDIS_URL, BROWSER, PROFILES and LOCK_SECONDS come from the environment)
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import redis
from playwright.sync_api import sync_playwright
from shop_script import place_order

JOBS = "shop:jobs"
LOCK_SECONDS = int(os.environ.get("LOCK_SECONDS", "900"))


def try_lock(client: Any, profile_id: str, worker: str) -> bool:
    return bool(client.set(f"shop:lock:{profile_id}", worker, nx=True, ex=LOCK_SECONDS))


def unlock(client: Any, profile_id: str, worker: str) -> None:
    if client.get(f"shop:lock:{profile_id}") == worker:
        client.delete(f"shop:lock:{profile_id}")


def run_job(job: dict[str, Any]) -> None:
    directory = Path(os.environ["PROFILES"]) / job["profile_id"]
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            directory, executable_path=os.environ.get("BROWSER"), args=["--no-sandbox"]
        )
        place_order(context.pages[0], job)
        context.close()


def work_once(client: Any, worker: str) -> bool:
    """Take one job. False: there was none."""
    popped = client.brpop([JOBS], timeout=1)
    if popped is None:
        return False
    job = json.loads(popped[1])
    if not try_lock(client, job["profile_id"], worker):
        client.lpush(JOBS, popped[1])
        return True
    try:
        run_job(job)
    finally:
        unlock(client, job["profile_id"], worker)
    return True


if __name__ == "__main__":
    with redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True) as connection:
        while work_once(connection, sys.argv[1]):
            pass
