"""The task of profiles that travel: say what the session holds, then put something new into it."""

from typing import Any

from leasekeeper import App, Run
from tests.runtime.shop import press

app = App()


@app.task("carry", warm=False)
async def carry(run: Run) -> dict[str, Any]:
    """What was there before, by each kind of storage; then `value` is stored in all of them."""
    await run.page.goto(f"{run.payload['url']}/ticking?title={run.profile_id}:{run.lease.token}")
    before = dict(await run.page.evaluate("window.recall('who')"))
    before["worker"] = await run.page.evaluate(
        "navigator.serviceWorker.getRegistration().then(found => !!(found && found.active))"
    )
    value = run.payload.get("value")
    if value is not None:
        await run.page.evaluate("value => window.remember('who', value)", value)
        await run.page.evaluate("navigator.serviceWorker.register('/sw.js').then(() => navigator.serviceWorker.ready)")
    return before


@app.task("carry_on", warm=True)
async def carry_on(run: Run) -> dict[str, Any]:
    """The same in a browser that is handed over."""
    return await carry(run)


@app.task("carry_and_fail", warm=False)
async def carry_and_fail(run: Run) -> None:
    """The same, and then an error of the task: the browser is closed as always."""
    await carry(run)
    raise ValueError("the list is empty")


@app.task("linger", warm=False)
async def linger(run: Run) -> None:
    """Put something new into the session, then click until the end."""
    await run.page.goto(f"{run.payload['url']}/ticking?title={run.profile_id}:{run.lease.token}")
    await run.page.evaluate("value => window.remember('who', value)", run.payload["value"])
    while True:
        await press(run.page)


@app.task("rest", warm=False)
async def rest(run: Run) -> dict[str, Any]:
    """Open the browser and do nothing: that is no change."""
    return {"title": await run.page.title()}


@app.canary
async def logged_in(page: Any) -> bool:
    """Whoever has the cookie is logged in."""
    return any(each["name"] == "who" for each in await page.context.cookies())
