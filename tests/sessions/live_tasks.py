"""Tasks whose browser people look at, take and hand back."""

import asyncio
from typing import Any

from leasekeeper import App, Run

app = App()


@app.task("ask")
async def ask(run: Run) -> dict[str, Any]:
    """Ask for a person, with a page if a URL is given, and say what they said."""
    if "url" in run.payload:
        await run.page.goto(f"{run.payload['url']}/?title=task")
    before = run.lease.token
    answer = await run.request_human("solve the prompt", timeout=run.payload.get("timeout", 3600))
    await run.safe("solved")
    title = await run.page.title() if "url" in run.payload else ""
    said = [answer.by, answer.outcome, answer.note]
    return {"said": said, "tokens": [before, run.lease.token], "title": title}


let_go = asyncio.Event()


@app.task("stubborn", resumable=True)
async def stubborn(run: Run) -> dict[str, Any]:
    """Work until somebody takes the browser, and then end only when told; begun anew, end at once."""
    if run.lease.token == 1:
        try:
            await asyncio.Event().wait()
        finally:
            await let_go.wait()
    return {"token": run.lease.token}
