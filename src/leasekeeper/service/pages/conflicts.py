"""Conflicts: which profiles and which pairs of tasks collide most, over time, and what helps."""

from typing import Final

from starlette.responses import Response

from leasekeeper.runtime.conflict_report import count_conflicts
from leasekeeper.service.pages.charts import stacked, window
from leasekeeper.service.pages.rendering import page
from leasekeeper.service.pages.visit import Visit
from leasekeeper.wording.conflicts import advice

TOP: Final = 20


async def view(visit: Visit) -> Response:
    report = await count_conflicts(visit, (await visit.stats()).now)
    shows = window(report.times, report.now, complete=report.complete)
    chart = stacked([("conflicts", report.times)], shows)
    return await page(visit, "conflicts.html", title="Conflicts", report=report, top=TOP, advice=advice, chart=chart)
