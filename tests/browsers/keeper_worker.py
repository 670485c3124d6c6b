"""A worker for tests to kill: launches a browser behind a keeper, renews its lease, acts on the page until it fails.

It renews `renew` seconds ahead, and only from its first act on: a browser may be slow to start. With `once`, one time.
"""

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from playwright.async_api import Error, Page, async_playwright

from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper_link import KeeperLink


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def tell(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def renew(link: KeeperLink, seconds: float) -> None:
    now = boot_time()
    link.extend(now + seconds, now + seconds + 60)


def go_on_renewing(link: KeeperLink, seconds: float) -> None:
    while True:
        time.sleep(0.2)  # waits: the rhythm of a heartbeat
        renew(link, seconds)


async def act(page: Page) -> None:
    await page.evaluate("sent => fetch('/act?sent=' + sent).then(r => r.text())", boot_time())


async def main(settings: dict[str, Any]) -> None:
    link = KeeperLink(Orders(**settings["orders"]))
    async with async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(
            link.orders.user_data_dir,
            executable_path=settings["wrapper"],
            args=settings["flags"],
            env={**os.environ, **link.env},
            timeout=settings["patience"] * 1000,
        )
        page = context.pages[0]
        await page.goto(settings["url"] + "/start?secret=1#top")
        await page.evaluate("document.cookie = 'kept=yes; max-age=100000'; localStorage.setItem('kept', 'yes')")
        browser = await link.started()
        await asyncio.sleep(settings.get("settle", 0))  # waits: time in which the browser has not yet saved its cookies
        await act(page)
        if settings.get("renew"):
            renew(link, settings["renew"])
            if not settings["once"]:
                threading.Thread(target=go_on_renewing, args=(link, settings["renew"]), daemon=True).start()
        tell(keeper=link.keeper_pid, browser=browser)
        try:
            while True:
                await act(page)
                await asyncio.sleep(0.02)  # waits: the pace of a worker
        except Error as error:
            tell(error=type(error).__name__, at=boot_time())
        report = await link.ended(settings["patience"])
        tell(cause=report.cause if report else None)
        await asyncio.Event().wait()  # until it is killed: its driver stays there for whoever wants to stop or wake it


asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
