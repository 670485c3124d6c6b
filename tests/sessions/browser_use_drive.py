"""browser-use without a model: its own browser session on the address of ours, as its agents use it. Clicks as often as
it is told. Run in an environment of its own."""

import asyncio
import os
import sys

from browser_use.browser import BrowserSession
from browser_use.browser.events import ClickElementEvent


async def main(site: str, name: str, times: int) -> None:
    session = BrowserSession(cdp_url=os.environ["LEASEKEEPER_CDP_URL"])
    await session.start()
    await session.navigate_to(f"{site}/?title={name}")
    for _ in range(times):
        await session.get_browser_state_summary(include_screenshot=False)
        elements = await session.get_selector_map()
        button = next(each for each in elements.values() if each.attributes.get("id") == "go")
        event = session.event_bus.dispatch(ClickElementEvent(node=button))
        await event
        await event.event_result(raise_if_any=True)
    await session.stop()
    print(f"clicked {times}", flush=True)  # noqa: T201 - its parent reads it


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
