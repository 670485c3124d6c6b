"""`make screenshots`: plays the demo, then photographs every page of the dashboard, on a desktop and on a phone, in the
light and in the dark theme, into docs/images/dashboard.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from leasekeeper import config
from leasekeeper.browsers.finding import find_browser
from leasekeeper.core.decisions import Review
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.leases import LeaseRef, RunRecord
from leasekeeper.core.tokens import Scope
from leasekeeper.core.workers import WorkerReport
from leasekeeper.demo.folder import MACHINE, Place
from leasekeeper.ports import ClaimRequest, Renewal, Store
from leasekeeper.service.app import make_app
from leasekeeper.service.auth import create_token
from leasekeeper.service.serving import Address, serving
from leasekeeper.service.state import Service
from leasekeeper.stores import open_store
from leasekeeper.version import __version__

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images" / "dashboard"
DEVICES = {"desktop": {"width": 1360, "height": 850}, "phone": {"width": 390, "height": 844}}
THEMES = ("light", "dark")
# Profile, last safe step, open section of the runs that are going on in the pictures.
AT_WORK = (
    ("books_us_1", "dashboard_open", ""),
    ("toys_fr_1", "dashboard_open", "export_orders"),
    ("toys_fr_guest", "", ""),
)
TASK, HELD_SECONDS = "export_orders", 900


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


async def work(store: Store) -> list[LeaseRef]:
    """Runs that go on while the pictures are taken, each at another point. Nobody opens a browser for them."""
    leases = []
    for number, (profile_id, step, section) in enumerate(AT_WORK, start=3):
        worker = WorkerId(f"worker-{number}")
        await store.report(
            WorkerReport(
                worker_id=worker,
                incarnation=f"{worker}-now",
                pool="default",
                tasks=(TASK, "sign_in"),
                machine=MACHINE,
                version=__version__,
            )
        )
        job = JobSpec(task=TASK, profile_id=ProfileId(profile_id), priority=9, lock_timeout_seconds=HELD_SECONDS)
        await store.submit([job, replace(job, priority=0)])  # and one that waits behind it
        (grant,) = await store.claim(
            ClaimRequest(worker_id=worker, incarnation=f"{worker}-now", tasks=(TASK,), machine=MACHINE)
        )
        if step:
            await store.checkpoint(grant.lease.ref, step)
        if section:
            await store.enter_section(grant.lease.ref, section)
        leases.append(grant.lease.ref)
    return leases


async def photograph(
    browser: Browser, url: str, token: str, addresses: dict[str, str], before: Callable[[], Awaitable[None]]
) -> None:
    for device, theme in product(DEVICES, THEMES):
        await before()
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
    # The workers of the pictures report once.
    loaded = config.load({**place.environ(), "LEASEKEEPER_WORKER_TTL": str(HELD_SECONDS)})
    store = await open_store(loaded.store, policy=loaded.policy)
    IMAGES.mkdir(parents=True, exist_ok=True)
    try:
        service = Service(store, loaded)
        made = await create_token(store, "ann", [Scope.ADMIN], actor="demo")
        leases = await work(store)

        async def heartbeat() -> None:
            await store.renew([Renewal(ref=ref) for ref in leases])

        async with service.running(), serving(make_app(service), Address(port=0)) as url, async_playwright() as play:
            browser = await play.chromium.launch(executable_path=find_browser().path, args=["--disable-gpu"])
            await photograph(browser, url, made.text, await pages(store), heartbeat)
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
