"""Tasks that run in real browsers. How to run them is in the README, under "Tasks in real browsers"."""

# tasks.py
from leasekeeper import App, Fail, Run

app = App()  # $LEASEKEEPER_STORE, leasekeeper.toml, else ./leasekeeper.db


@app.task("sync_orders", actions=["read_dashboard", "export_orders"])
async def sync_orders(run: Run) -> dict[str, int]:
    page = run.page  # Playwright page in the leased profile
    await page.goto(run.payload["shop_url"])
    if await page.locator("#login").count():
        raise Fail("LOGIN_REQUIRED", "the shop shows its login form")
    await run.safe("dashboard_open")  # last safe step, fenced
    async with run.mutating("export_orders"):  # dying in here means quarantine
        await page.click("#export")
    return {"orders": await page.locator(".order").count()}
