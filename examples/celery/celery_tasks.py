"""A Celery task that works in a leased browser. Start it: celery -A celery_tasks worker --pool prefork"""

import os

from celery import Celery, Task

import leasekeeper

BROKER = os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379/0")
BUSY_SECONDS = float(os.environ.get("BUSY_SECONDS", "60"))

# A worker that dies gives its message back: the lease, not the queue, says whether the profile may be used again.
app = Celery("shop", broker=BROKER, backend=BROKER)
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)


@app.task(bind=True, max_retries=None)
def sync_orders(self: Task, profile_id: str, url: str) -> str:
    """Open the shop in this profile's browser. While another program has the profile, the task is retried later."""
    try:
        with leasekeeper.browser(profile_id) as browser:
            browser.page.goto(url)
            browser.checkpoint("shop_open")
            browser.page.click("#go")
            return browser.page.title()
    except leasekeeper.ProfileBusy as busy:
        raise self.retry(exc=busy, countdown=BUSY_SECONDS) from busy
