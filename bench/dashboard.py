"""How quick the pages are with 10,000 profiles and 100,000 jobs: against the same data over the API, and in a browser.

`page_to_api` is what a page takes over what the API calls take that give the same data. The browser is real: from the
click or key until the new rows are there. Machines are noisy, so the middle of several rounds counts.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import httpx2
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from leasekeeper.browsers.finding import find_browser
from leasekeeper.core.accounts import Account
from leasekeeper.core.browsers import NULL
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, ProfileId, WorkerId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.profiles import Profile
from leasekeeper.core.settle import Browser as BrowserEnd
from leasekeeper.core.settle import EndFacts, Ending
from leasekeeper.core.workers import WorkerReport
from leasekeeper.ports import MAX_IN_BATCH, ClaimRequest, Grant, Store
from tests.serving import Served, ServerThread

PROFILES = int(os.environ.get("BENCH_PROFILES", "10000"))
JOBS = int(os.environ.get("BENCH_JOBS", "100000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "11"))
PER_ACCOUNT = 20
RUNS = 3_000
LIVE = 400
TASKS = ("sync_orders", "read_prices", "send_report")
REASONS = (None, None, None, "LOGIN_REQUIRED", "TIMEOUT")
OUT = Path("bench/out/dashboard.json")
# Page → the API calls that give the same data.
SAME = {
    "fleet": ("/ui/", ("/v1/profiles?limit=50", "/v1/stats", "/v1/leases?live=1&limit=50")),
    "fleet_filtered": (
        "/ui/?q=state%3Areview_required+account%3Ashop_01%2A",
        ("/v1/profiles?state=review_required&account_prefix=shop_01&limit=50", "/v1/stats"),
    ),
    "fleet_by_label": ("/ui/?q=label%3Atier%3Dgold", ("/v1/profiles?label=tier%3Dgold&limit=50", "/v1/stats")),
    "queue": ("/ui/queue", ("/v1/jobs?limit=50", "/v1/stats")),
    "queue_filtered": ("/ui/queue?q=task%3Aread_prices", ("/v1/jobs?task=read_prices&limit=50", "/v1/stats")),
    "runs": ("/ui/runs", ("/v1/runs?limit=50", "/v1/stats")),
}
# Pages that gather more than one list: how long, without a ratio.
OTHERS = {
    "board": "/ui/?view=board",
    "reviews": "/ui/reviews",
    "dead_letters": "/ui/dead-letters",
    "conflicts": "/ui/conflicts",
    "activity": "/ui/activity",
    "settings": "/ui/settings",
}


def account(number: int) -> str:
    return f"shop_{number // PER_ACCOUNT:03}"


async def furnish(store: Store) -> None:
    """A fleet with its history: jobs that wait, runs that ended well and badly, leases that are live."""
    names = [f"shop_{n // PER_ACCOUNT:03}_{n % PER_ACCOUNT:02}" for n in range(PROFILES)]
    fleet = Fleet(
        accounts={account(n): Account(account_id=AccountId(account(n))) for n in range(0, PROFILES, PER_ACCOUNT)},
        profiles={
            name: Profile(
                profile_id=ProfileId(name),
                account_id=AccountId(account(n)),
                driver=NULL,
                tier="gold" if n % 10 == 0 else None,
                labels={"tier": "gold" if n % 10 == 0 else "silver"},
            )
            for n, name in enumerate(names)
        },
    )
    await store.apply(fleet, actor="bench")
    report = WorkerReport(worker_id=WorkerId("w1"), incarnation="w1-1", pool="default", tasks=TASKS)
    await store.report(report)
    specs = [
        JobSpec(task=TASKS[n % 3], profile_id=ProfileId(names[n % PROFILES]), payload={"n": n}, max_attempts=1)
        for n in range(JOBS)
    ]
    for begin in range(0, JOBS, MAX_IN_BATCH):
        await store.submit(specs[begin : begin + MAX_IN_BATCH])
    ended = 0
    while ended < RUNS:
        grants = await claim(store, 200)
        assert grants, "too few jobs for so many runs"
        await store.settle([ending(grant, ended + n) for n, grant in enumerate(grants)])
        ended += len(grants)
    for _ in range(LIVE // 200):
        await claim(store, 200)


async def claim(store: Store, limit: int) -> list[Grant]:
    request = ClaimRequest(worker_id=WorkerId("w1"), incarnation="w1-1", tasks=TASKS, limit=limit)
    return await store.claim(request)


def ending(grant: Grant, number: int) -> Ending:
    facts = EndFacts(browser=BrowserEnd.CLOSED, final_url="https://shop.example/orders")
    return Ending(ref=grant.lease.ref, reason=REASONS[number % len(REASONS)], facts=facts)


def middle(measured: Callable[[], float]) -> float:
    """The middle of several rounds, in milliseconds; the first one warms up."""
    measured()
    return 1_000 * median(measured() for _ in range(ROUNDS))


def over_http(served: Served) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds of each page, and its ratio to the API."""
    client = httpx2.Client(
        base_url=served.url, headers=served.headers, cookies={"leasekeeper_token": served.token}, timeout=60
    )

    def takes(paths: Sequence[str], clock: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
        def once() -> float:
            began = clock()
            for path in paths:
                answer = client.get(path)
                assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
            return clock() - began

        return once

    figures, ratios = {}, {}
    with client:
        for name, (page, calls) in SAME.items():
            figures[f"{name}_ms"] = middle(takes([page]))
            ratios[name] = figures[f"{name}_ms"] / middle(takes(calls))
        for name, page in OTHERS.items():
            figures[f"{name}_ms"] = middle(takes([page]))
        # What the processor does for a page, in the server and in this client: the same on a busy machine.
        for name, page in {**{name: page for name, (page, _) in SAME.items()}, **OTHERS}.items():
            figures[f"{name}_cpu_ms"] = middle(takes([page], time.process_time))
    return figures, ratios


def in_browser(browser: Browser, served: Served) -> dict[str, float]:
    """Milliseconds until a person sees it: the first view, a filter, another page."""

    def signed_in() -> BrowserContext:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        context.add_cookies([{"name": "leasekeeper_token", "value": served.token, "url": f"{served.url}/ui"}])
        return context

    def first_view() -> float:
        context = signed_in()
        page = context.new_page()
        began = time.perf_counter()
        page.goto(f"{served.url}/ui/", wait_until="load")
        took = time.perf_counter() - began
        assert page.locator("tbody tr").count() == 50
        context.close()
        return took

    def in_page(act: Callable[[Page], float]) -> float:
        context = signed_in()
        page = context.new_page()
        page.goto(f"{served.url}/ui/", wait_until="load")
        took = act(page)
        context.close()
        return took

    return {
        "first_view_ms": middle(first_view),
        "filter_ms": middle(lambda: in_page(filtering)),
        "page_change_ms": middle(lambda: in_page(turning)),
    }


# Both clocks are the page's own: from the last key, or the click, to the new rows.
_WATCH = """() => {
  document.addEventListener('keydown', () => { window.pressed = performance.now(); }, true);
  new MutationObserver(() => {
    if (!window.shown && document.querySelector('tbody tr')?.id === 'p-shop_250_00') window.shown = performance.now();
  }).observe(document.getElementById('main').parentNode, {childList: true, subtree: true, attributes: true});
}"""
KEY_MS = 150  # as people type: the answers to what was typed so far come in between


def filtering(page: Page) -> float:
    page.evaluate(_WATCH)
    page.get_by_label("Filter").press_sequentially("account:shop_25*", delay=KEY_MS)
    while True:
        took: float | None = page.evaluate("window.shown ? window.shown - window.pressed : null")
        if took is not None:
            return took / 1_000
        page.wait_for_timeout(10)


def turning(page: Page) -> float:
    page.get_by_role("link", name="Next page").click()
    page.wait_for_url("**after=*", wait_until="load")
    timing: float = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    return timing / 1_000


def main() -> None:
    print(f"the pages with {PROFILES:,} profiles and {JOBS:,} jobs; the middle of {ROUNDS} rounds\n", flush=True)
    server = ServerThread()
    server.start()
    with tempfile.TemporaryDirectory(prefix="lk-bench-", dir="/var/tmp") as folder:
        served = server.serve(f"sqlite:///{folder}/leasekeeper.db", data_dir=f"{folder}/data")
        try:
            began = time.perf_counter()
            server.begin(furnish(served.store)).result()
            print(f"the store was made in {time.perf_counter() - began:.0f} s", flush=True)
            figures, ratios = over_http(served)
            with sync_playwright() as playwright:
                flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
                browser = playwright.chromium.launch(executable_path=find_browser().path, args=flags)
                figures |= in_browser(browser, served)
                browser.close()
        finally:
            served.close()
            server.stop()
    report(figures, {"page_to_api": max(ratios.values()), **{f"page_to_api.{k}": v for k, v in ratios.items()}})


def report(figures: dict[str, float], ratios: dict[str, float]) -> None:
    OUT.parent.mkdir(parents=True, exist_ok=True)
    rounded = {
        "ratios": {name: round(value, 2) for name, value in ratios.items()},
        "figures": {name: round(value, 1) for name, value in figures.items()},
    }
    OUT.write_text(json.dumps(rounded, indent=2) + "\n")
    for title, values in rounded.items():
        print(f"\n{title}")
        for name, value in values.items():
            print(f"  {name:<28} {value:>9}")
    print(f"\nwritten to {OUT}")


if __name__ == "__main__":
    main()
