"""A Temporal activity that works in a leased browser. Register it: Worker(client, activities=[sync_orders], …)"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError

from leasekeeper import LeaseLost, ProfileBusy, connect

HEARTBEAT_SECONDS = 5.0


@activity.defn
async def sync_orders(profile_id: str, url: str) -> str:
    """Open the shop in this profile's browser. Give the activity a heartbeat_timeout: a cancelled workflow then ends
    it, and the browser is closed with proof on the way out."""
    try:
        async with heartbeats(), connect() as client, client.browser(profile_id) as browser:
            await browser.page.goto(url)
            await browser.checkpoint("shop_open")
            async with browser.mutating("submit_order"):
                await browser.page.click("#go")
            return await browser.page.title()
    except ProfileBusy as busy:
        # Temporal waits, not a worker's slot.
        raise ApplicationError(str(busy), type="ProfileBusy", next_retry_delay=timedelta(minutes=1)) from busy
    except LeaseLost as lost:
        # What was submitted is not known: a person decides in `leasekeeper reviews`, not a retry.
        raise ApplicationError(str(lost), type="LeaseLost", non_retryable=True) from lost


@asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Send Temporal's heartbeats while the activity runs. The lease is renewed separately."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
