"""Tasks for worker processes that tests put under stress. Every request says by which token it was made."""

import asyncio
from typing import Any

from leasekeeper import App, Run

app = App()


@app.task("work", actions=["buy"], timeout=120)
async def work(run: Run) -> dict[str, Any]:
    """Open a page that acts by itself, then click until stopped (`clicks`), inside a section if asked to."""
    token = run.lease.token
    name = f"{run.profile_id}:{token}"
    await run.page.goto(f"{run.payload['url']}/ticking?title={name}")
    await run.page.evaluate("([k, v]) => window.remember(k, v)", ["who", name])
    await run.safe("page_open", flush=True)
    clicks = int(run.payload.get("clicks", 1_000_000))
    # After a fault the job may be tried again: then it comes to its end at once.
    if run.job.attempt > 1:
        clicks = 1
    if run.payload.get("section"):
        async with run.mutating("buy"):
            await _click(run, clicks)
    else:
        await _click(run, clicks)
    return {"name": name}


async def _click(run: Run, clicks: int) -> None:
    for _ in range(clicks):
        await run.page.click("#go")
        await asyncio.sleep(0.05)  # waits: a person does not click faster


@app.task("recall")
async def recall(run: Run) -> dict[str, Any]:
    await run.page.goto(run.payload["url"])
    return dict(await run.page.evaluate("window.recall('who')"))


@app.task("leak", warm=False)
async def leak(run: Run) -> dict[str, Any]:
    """Visit a page that shows its secrets, and say one of them in an error, if asked to."""
    await run.page.goto(run.payload["url"])
    await run.page.evaluate("window.asked")
    secret = await run.secret(run.payload["secret"])
    await run.page.evaluate("text => console.error(`refused ${text}`)", secret)
    await run.note(f"signs in with {secret}")
    await run.safe("page_open")
    if run.payload["fails"]:
        raise RuntimeError(f"no login with password={await run.page.evaluate('window.password')}, nor with {secret}")
    return {"title": await run.page.title()}
