"""Sessions on a launcher's browser: the same clients, over the keeper's WebSocket instead of a pipe."""

import asyncio
from pathlib import Path
from typing import Any

from playwright.async_api import async_playwright

from leasekeeper.app import App
from leasekeeper.client import Client
from leasekeeper.core.leases import RunRecord
from tests.launchers.stage import Fake, launched_house


async def test_a_session_works_in_the_launchers_browser(sqlite_url: str, tmp_path: Path, recipe: Fake) -> None:
    async with launched_house(App(), sqlite_url, tmp_path, recipe) as home:
        client = Client(await home.open_store(), home.config)
        try:
            async with client.browser("p1") as browser, async_playwright() as playwright:
                await browser.page.set_content("<title>orders</title>")
                others = [await playwright.chromium.connect_over_cdp(await browser.cdp_url()) for _ in range(2)]

                async def ask(each: Any, number: int) -> None:
                    page = each.contexts[0].pages[0]
                    assert await page.title() == "orders"
                    for count in range(50):
                        assert await page.evaluate(f"{number} * 1000 + {count}") == number * 1000 + count

                await asyncio.gather(*(ask(each, number) for number, each in enumerate(others)))
        finally:
            await client.close()
        run: Any = (await home.store.find(RunRecord, limit=1)).items[0]
        assert (run.purpose, run.result) == ("session", "completed")
        assert run.evidence["keeper"]["clean_close"]
        assert (await home.lane()).state == "available"
