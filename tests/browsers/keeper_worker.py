"""A worker for tests to kill: launches a browser behind a keeper, renews its lease, acts on the page until it fails."""

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from playwright.async_api import Error, async_playwright

from leasehold.browsers.link import KeeperLink, Orders


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def tell(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def renew(link: KeeperLink, seconds: float) -> None:
    while True:
        now = boot_time()
        link.extend(now + seconds, now + seconds + 60)
        time.sleep(0.2)  # waits: the rhythm of a heartbeat


async def main(settings: dict[str, Any]) -> None:
    link = KeeperLink(Orders(**settings["orders"]))
    if settings.get("renew"):
        threading.Thread(target=renew, args=(link, settings["renew"]), daemon=True).start()
    async with async_playwright() as playwright:
        context = await playwright.chromium.launch_persistent_context(
            link.orders.user_data_dir,
            executable_path=settings["wrapper"],
            args=settings["flags"],
            env={**os.environ, **link.env},
        )
        page = context.pages[0]
        await page.goto(settings["url"] + "/start?secret=1#top")
        await page.evaluate("document.cookie = 'kept=yes; max-age=100000'; localStorage.setItem('kept', 'yes')")
        browser = await link.started()
        await asyncio.sleep(settings.get("settle", 0))  # waits: time in which the browser has not yet saved its cookies
        tell(keeper=link.keeper_pid, browser=browser)
        try:
            while True:
                await page.evaluate("sent => fetch('/act?sent=' + sent).then(r => r.text())", boot_time())
                await asyncio.sleep(0.02)  # waits: the pace of a worker
        except Error as error:
            tell(error=type(error).__name__, at=boot_time())
        report = await link.ended(60)
        tell(cause=report.cause if report else None)


asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
