"""`make screenshots`: plays the demo, then photographs every page of the dashboard, on a desktop and on a phone, in the
light and in the dark theme, into docs/images/dashboard.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from leasekeeper import config
from leasekeeper.browsers.finding import find_browser
from leasekeeper.core.decisions import Review
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.tokens import Scope
from leasekeeper.demo.folder import Place
from leasekeeper.ports import Store
from leasekeeper.service.app import make_app
from leasekeeper.service.auth import create_token
from leasekeeper.service.serving import Address, serving
from leasekeeper.service.state import Service
from leasekeeper.stores import open_store

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images" / "dashboard"
DEVICES = {"desktop": {"width": 1360, "height": 850}, "phone": {"width": 390, "height": 844}}
THEMES = ("light", "dark")


async def pages(store: Store) -> dict[str, str]:
    """Name → address; of runs and reviews, one that went wrong is worth a picture."""
    lost = (await store.find(RunRecord, {"stop_reason": "WORKER_LOST"}, limit=10)).items[-1]
    reviews = (await store.find(Review, {"open": "1", "reason": "WORKER_LOST", "target": "profile"}, limit=1)).items
    return {
        "fleet": "/ui/",
        "board": "/ui/?view=board",
        "profile": f"/ui/profiles/{lost.profile_id}",
        "queue": "/ui/queue",
        "job": f"/ui/jobs/{lost.job_id}",
        "submit": "/ui/queue/new",
        "runs": "/ui/runs",
        "run": f"/ui/runs/{lost.run_id}",
        "reviews": f"/ui/reviews?review={reviews[0].review_id}" if reviews else "/ui/reviews",
        "dead-letters": "/ui/dead-letters",
        "conflicts": "/ui/conflicts",
        "activity": "/ui/activity",
        "settings": "/ui/settings",
    }


async def photograph(browser: Browser, url: str, token: str, addresses: dict[str, str]) -> None:
    for device, theme in product(DEVICES, THEMES):
        size = DEVICES[device]
        context = await browser.new_context(
            viewport={"width": size["width"], "height": size["height"]},
            color_scheme="dark" if theme == "dark" else "light",
        )
        await context.add_cookies([{"name": "leasekeeper_token", "value": token, "url": f"{url}/ui"}])
        page = await context.new_page()
        for name, address in addresses.items():
            await page.goto(url + address)
            # A page without a stream has nothing to wait for.
            if await page.locator("body[data-live^='/']").count():
                await page.get_by_text("live", exact=True).wait_for()
            await page.screenshot(path=IMAGES / f"{name}-{device}-{theme}.png", animations="disabled")
        await context.close()


async def main(place: Place) -> None:
    loaded = config.load(place.environ())
    store = await open_store(loaded.store, policy=loaded.policy)
    IMAGES.mkdir(parents=True, exist_ok=True)
    try:
        service = Service(store, loaded)
        made = await create_token(store, "ann", [Scope.ADMIN], actor="demo")
        async with service.running(), serving(make_app(service), Address(port=0)) as url, async_playwright() as play:
            browser = await play.chromium.launch(executable_path=find_browser().path, args=["--disable-gpu"])
            await photograph(browser, url, made.text, await pages(store))
            await browser.close()
    finally:
        await store.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, help="the folder of a demo that was played already")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.demo or Path(scratch) / "demo"
        if given.demo is None:
            subprocess.run([sys.executable, "-m", "leasekeeper", "demo", "--folder", str(folder)], check=True)
        asyncio.run(main(Place(folder=folder)))
    print(f"{len(list(IMAGES.glob('*.png')))} screenshots in {IMAGES}")
