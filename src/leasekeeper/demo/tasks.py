"""The demo's tasks, written as an example for yours. `leasekeeper worker leasekeeper.demo.tasks:app` runs them.

A task gets one argument: a page in a leased profile, the job's payload, and methods to report its progress. It never
opens or closes a browser, and has no retry loop: it raises, and Leasekeeper decides by the reason.
"""

from typing import Any

from leasekeeper import App, Fail, Run, SyncRun

app = App()

# If a task ends on a page with the login form, a person has to log in.
app.detector("LOGIN_REQUIRED", selector="form#login")

SIGNS_MS = 5_000


@app.task("sign_in")
async def sign_in(run: Run) -> None:
    """Log in once. The session is stored in the profile, so every later run is logged in."""
    await say_who_asks(run)
    await run.page.goto(f"{run.payload['shop']}/login")
    await run.page.fill("#customer", run.profile_id)
    await run.page.click("#enter")
    await run.page.locator("#dashboard, #code").wait_for(timeout=SIGNS_MS)
    if await run.page.locator("#code").is_visible():
        raise Fail("SECURITY_PROMPT", "the shop asks for a code that was sent by mail")
    await run.safe("signed_in", flush=True)


@app.task("read_orders")
async def read_orders(run: Run) -> dict[str, Any]:
    """Only reads, so there is no mutating section: if its worker is lost, it can be retried."""
    await open_dashboard(run)
    await run.page.click("#orders")
    await run.page.locator("#export").wait_for(timeout=SIGNS_MS)
    return {"orders": await run.page.locator(".order").count()}


@app.task("export_orders", actions=["export_orders"])
async def export_orders(run: Run) -> dict[str, Any]:
    """Presses a button that must not be pressed twice: that belongs in a mutating section."""
    await open_dashboard(run)
    await run.page.click("#orders")
    async with run.mutating("export_orders"):
        await run.page.click("#export")
        await run.page.locator("#exported").wait_for()
    return {"exported": await run.page.locator("#exported").inner_text()}


@app.task("monthly_report", actions=["send_report"])
async def monthly_report(run: Run) -> dict[str, Any]:
    """Waits for a slow page, then sends what it shows."""
    await open_dashboard(run)
    await run.page.goto(f"{run.payload['shop']}/report")
    await run.page.click("#details")
    await run.page.locator("#send").wait_for()
    await run.safe("report_open")
    async with run.mutating("send_report"):
        await run.page.click("#send")
        await run.page.locator("#sent").wait_for()
    return {"sent": "the monthly report"}


@app.task("sync_stock", timeout=5)
async def sync_stock(run: Run) -> dict[str, Any]:
    """Has a time limit. A run that takes longer ends with TIMEOUT, and the job is tried again."""
    await open_dashboard(run)
    await run.page.goto(f"{run.payload['shop']}/stock")
    return {"articles": await run.page.locator(".article").count()}


@app.task("price_list")
def price_list(run: SyncRun) -> dict[str, Any]:
    """A plain `def`: the same methods, Playwright's sync API. Attaches what it found to the run's evidence."""
    run.page.set_extra_http_headers({"X-Lease": run.lease.lease_id})
    run.page.goto(f"{run.payload['shop']}/prices")
    prices = run.page.locator(".price").all_inner_texts()
    run.attach("prices.csv", "\n".join(prices))
    return {"prices": len(prices)}


async def open_dashboard(run: Run) -> None:
    """The first step of nearly every task: it could start over from here without harm."""
    await say_who_asks(run)
    await run.page.goto(f"{run.payload['shop']}/dashboard")
    await run.page.locator("#dashboard").wait_for(timeout=SIGNS_MS)
    await run.safe("dashboard_open")


async def say_who_asks(run: Run) -> None:
    """Send the lease, which has profile and fencing token, with every request: the shop counts by it."""
    await run.page.set_extra_http_headers({"X-Lease": run.lease.lease_id})
