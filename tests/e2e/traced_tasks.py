"""Tasks with spans of their own, as people write them who have OpenTelemetry in their project."""

from opentelemetry import trace

from leasekeeper import App, Run, SyncRun
from leasekeeper.errors import Fail

app = App()
tracer = trace.get_tracer("shop")


@app.task
async def visit(run: Run) -> dict[str, str]:
    with tracer.start_as_current_span("read the orders"):
        await run.page.goto("data:text/html,<title>orders</title>")
        return {"title": await run.page.title()}


@app.task
def count(run: SyncRun) -> dict[str, int]:
    with tracer.start_as_current_span("count the orders"):
        counted = {"orders": 3}
    # Outside: a span of a person's own records the text of an exception.
    if run.payload.get("fails"):
        raise Fail("LOGIN_REQUIRED", "logged out of the shop")
    return counted
