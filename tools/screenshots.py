"""`make screenshots`: plays the demo, then takes a screenshot of every page of the dashboard, on a desktop and on a
phone, in the light and in the dark theme, into docs/images/dashboard. Beside the demo's data there are a session for
the live view, a profile with a long name, more dead letters, and a store in which nothing has happened yet.
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

import httpx2
from playwright.async_api import Browser, Playwright, async_playwright

from leasekeeper import config
from leasekeeper.browsers.finding import find_browser
from leasekeeper.core.accounts import Account
from leasekeeper.core.browsers import NULL
from leasekeeper.core.decisions import Action, Decision, Review, Target
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, ProfileId, WorkerId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.leases import LeaseRef, RunRecord
from leasekeeper.core.profiles import Profile
from leasekeeper.core.settle import Browser as BrowserEnd
from leasekeeper.core.settle import EndFacts, Ending
from leasekeeper.core.tokens import Scope
from leasekeeper.core.workers import WorkerReport
from leasekeeper.demo.folder import MACHINE, Place
from leasekeeper.ports import ClaimRequest, Grant, Renewal, Store
from leasekeeper.service.app import make_app
from leasekeeper.service.auth import create_token
from leasekeeper.service.serving import Address, serving
from leasekeeper.service.state import Service
from leasekeeper.stores import open_store
from leasekeeper.version import __version__

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images" / "dashboard"
# Width, height of the window, and how much of a longer page is shown.
DEVICES = {"desktop": (1360, 850, 1900), "phone": (390, 844, 1900)}
THEMES = ("light", "dark")
# Profile, last safe step, open section of the runs that are going on in the pictures.
AT_WORK = (
    ("books_us_1", "dashboard_open", ""),
    ("toys_fr_1", "dashboard_open", "export_orders"),
    ("toys_fr_guest", "", ""),
)
TASK, HELD_SECONDS = "export_orders", 900
LONG = "international_marketplace_holding_europe_west"
EMPTY = {"empty-fleet": "/ui/", "empty-queue": "/ui/queue", "empty-reviews": "/ui/reviews"}
# Of a session in the pictures: its profile, and what its browser shows.
SESSION_OF = "books_us_6"
SHOWN = """<title>Orders</title><body style="font:16px sans-serif;margin:2rem"><h1>Orders of today</h1>
<p>3 orders wait for a label.</p><button>Print all</button>"""
PICTURES_ARE_THERE = (
    """() => Promise.all([...document.images].map(each => { each.loading = 'eager'; return each.decode(); }))"""
)


async def run_that(store: Store, reason: str) -> RunRecord:
    """The first run that stopped for this reason."""
    return (await store.find(RunRecord, {"stop_reason": reason}, limit=10)).items[-1]


async def pages(store: Store, session_id: str) -> dict[str, str]:
    """Name → address; of runs and reviews, one that went wrong is worth a picture."""
    lost, failed = await run_that(store, "WORKER_LOST"), await run_that(store, "LOGIN_REQUIRED")
    reviews = (await store.find(Review, {"open": "1", "reason": "WORKER_LOST", "target": "profile"}, limit=1)).items
    return {
        "fleet": "/ui/",
        "board": "/ui/?view=board",
        "profile": f"/ui/profiles/{lost.profile_id}",
        "queue": "/ui/queue",
        "job": f"/ui/jobs/{lost.job_id}",
        "submit": "/ui/queue/new",
        "runs": "/ui/runs",
        "run": f"/ui/runs/{failed.run_id}",
        "lost-run": f"/ui/runs/{lost.run_id}",
        "live-view": f"/ui/runs/{session_id}/live",
        "reviews": f"/ui/reviews?review={reviews[0].review_id}" if reviews else "/ui/reviews",
        "dead-letters": "/ui/dead-letters",
        "conflicts": "/ui/conflicts",
        "activity": "/ui/activity",
        "settings": "/ui/settings",
        "doctor": "/ui/settings?examine=1#doctor",
        "sign-in": "/ui/sign-in",
    }


async def extend(store: Store) -> None:
    """What the demo has none of: a long name, a tier, a ban, notes, and more than one dead letter."""
    long_account, long_profile = (AccountId(f"{LONG}_{end}") for end in ("gmbh", "storefront_0001"))
    profile = Profile(profile_id=ProfileId(long_profile), account_id=long_account, driver=NULL, tier="gold")
    fleet = Fleet(accounts={long_account: Account(account_id=long_account)}, profiles={profile.profile_id: profile})
    await store.apply(fleet, actor="ann")
    lost = await run_that(store, "WORKER_LOST")
    for target, record_id, action, note in (
        (Target.PROFILE, long_profile, Action.SUSPECT, "two orders were cancelled by the shop"),
        (Target.PROFILE, lost.profile_id, Action.NOTE, "asks for a code on Mondays: the phone is Kim's"),
        (Target.ACCOUNT, lost.account_id, Action.NOTE, "contract until March"),
    ):
        await store.decide(Decision(target=target, id=record_id, action=action, note=note, actor="ann"))
    for task, reason, number in (("export_orders", "TIMEOUT", 3), ("sign_in", "TEMPORARY_NAVIGATION_ERROR", 2)):
        await report(store, WorkerId("worker-3"))
        for _ in range(number):
            await store.submit([JobSpec(task=task, profile_id=profile.profile_id, max_attempts=1, priority=9)])
            (grant,) = await claim(store, WorkerId("worker-3"), (task,))
            facts = EndFacts(browser=BrowserEnd.CLOSED, final_url="http://127.0.0.1/orders?page=12&sort=newest")
            message = "Page.goto: Timeout 30000ms exceeded, waiting until the list of orders was there"
            await store.settle([Ending(ref=grant.lease.ref, reason=reason, message=message, facts=facts)])


async def report(store: Store, worker: WorkerId) -> None:
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


async def claim(store: Store, worker: WorkerId, tasks: tuple[str, ...]) -> list[Grant]:
    request = ClaimRequest(worker_id=worker, incarnation=f"{worker}-now", tasks=tasks, machine=MACHINE)
    return await store.claim(request)


async def work(store: Store) -> list[LeaseRef]:
    """Runs that go on while the pictures are taken, each at another point. Nobody opens a browser for them."""
    leases = []
    for number, (profile_id, step, section) in enumerate(AT_WORK, start=3):
        worker = WorkerId(f"worker-{number}")
        await report(store, worker)
        job = JobSpec(task=TASK, profile_id=ProfileId(profile_id), priority=9, lock_timeout_seconds=HELD_SECONDS)
        await store.submit([job, replace(job, priority=0)])  # and one that waits behind it
        (grant,) = await claim(store, worker, (TASK,))
        if step:
            await store.checkpoint(grant.lease.ref, step)
        if section:
            await store.enter_section(grant.lease.ref, section)
        leases.append(grant.lease.ref)
    return leases


async def photograph(
    browser: Browser, url: str, token: str, addresses: dict[str, str], before: Callable[[], Awaitable[None]]
) -> None:
    """Every page on every device in every theme: as much of it as there is, up to a height."""
    for device, theme in product(DEVICES, THEMES):
        await before()
        width, height, tallest = DEVICES[device]
        context = await browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if theme == "dark" else "light",
        )
        await context.add_cookies([{"name": "leasekeeper_token", "value": token, "url": f"{url}/ui"}])
        page = await context.new_page()
        for name, address in addresses.items():
            await page.set_viewport_size({"width": width, "height": height})
            await page.goto(url + address)
            # A page without a stream has nothing to wait for.
            if await page.locator("body[data-live^='/']").count():
                await page.get_by_text("live", exact=True).wait_for()
            if "/live" in address:
                await page.locator("#lv[data-frames]").wait_for()
            whole = int(await page.evaluate("document.documentElement.scrollHeight"))
            await page.set_viewport_size({"width": width, "height": min(max(whole, height), tallest)})
            await page.evaluate(PICTURES_ARE_THERE)
            await page.evaluate("document.getElementById(location.hash.slice(1))?.scrollIntoView()")
            await page.screenshot(path=IMAGES / f"{name}-{device}-{theme}.png", animations="disabled")
        await context.close()


async def open_session(play: Playwright, url: str, token: str) -> str:
    """A session whose browser shows something; its id."""
    async with httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
        answer = (await client.post("/v1/sessions", json={"profile_id": SESSION_OF})).raise_for_status().json()
    agent = await play.chromium.connect_over_cdp(answer["cdp_url"])
    await agent.contexts[0].pages[0].goto(f"data:text/html,{SHOWN}")
    session_id: str = answer["session_id"]
    return session_id


async def main(place: Place) -> None:
    # The workers of the pictures report once.
    loaded = config.load({**place.environ(), "LEASEKEEPER_WORKER_TTL": str(HELD_SECONDS)})
    store = await open_store(loaded.store, policy=loaded.policy)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for image in IMAGES.glob("*.png"):
        image.unlink()
    try:
        service = Service(store, loaded, sessions=1)
        service.sessions.here.worker_id = WorkerId("server-1")  # not the name of the user who runs this
        made = await create_token(store, "ann", [Scope.ADMIN], actor="demo")
        await extend(store)
        leases = await work(store)

        async def heartbeat() -> None:
            await store.renew([Renewal(ref=ref) for ref in leases])

        async with service.running(), serving(make_app(service), Address(port=0)) as url, async_playwright() as play:
            flags = ["--disable-gpu", "--no-sandbox"]
            browser = await play.chromium.launch(executable_path=find_browser().path, args=flags)
            session_id = await open_session(play, url, made.text)
            await photograph(browser, url, made.text, await pages(store, session_id), heartbeat)
            await browser.close()
    finally:
        await store.close()


async def photograph_empty(folder: Path) -> None:
    """The pages of a store in which nothing has happened: they teach the first step."""
    loaded = config.load({}, store=f"sqlite:///{folder}/empty.db", data_dir=str(folder))
    store = await open_store(loaded.store, policy=loaded.policy)
    try:
        service = Service(store, loaded)
        made = await create_token(store, "ann", [Scope.ADMIN], actor="ann")

        async def nothing() -> None:
            """No lease has to be kept."""

        async with service.running(), serving(make_app(service), Address(port=0)) as url, async_playwright() as play:
            flags = ["--disable-gpu", "--no-sandbox"]
            browser = await play.chromium.launch(executable_path=find_browser().path, args=flags)
            await photograph(browser, url, made.text, EMPTY, nothing)
            await browser.close()
    finally:
        await store.close()


def compress() -> None:
    """At most 256 colours, which is what the pages have but for what is in their pictures."""
    subprocess.run(
        ["pngquant", "--force", "--skip-if-larger", "--strip", "--ext", ".png", "256", *IMAGES.glob("*.png")],
        check=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, help="the folder of a demo that was played already")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.demo or Path(scratch) / "demo"
        if given.demo is None:
            subprocess.run([sys.executable, "-m", "leasekeeper", "demo", "--folder", str(folder)], check=True)
        asyncio.run(main(Place(folder=folder)))
        asyncio.run(photograph_empty(Path(scratch)))
    compress()
    print(f"{len(list(IMAGES.glob('*.png')))} screenshots in {IMAGES}")
