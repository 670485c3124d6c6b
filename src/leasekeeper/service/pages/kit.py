"""Every component of the pages on one page, with texts that are hard to lay out: for people who change the pages."""

from datetime import timedelta

from starlette.responses import Response

from leasekeeper.service.pages.charts import BARS, lines, stacked, window
from leasekeeper.service.pages.filter_language import Asked
from leasekeeper.service.pages.rendering import page
from leasekeeper.service.pages.visit import Visit


async def view(visit: Visit) -> Response:
    now = (await visit.stats()).now
    asked = Asked(text="state:nowhere", problems=("state is one of available, leased, stale",))
    shows = window([], now)
    times = [now - timedelta(minutes=n) for n in range(60)]
    use: dict[str, list[float | None]] = {
        "default": [float(n % 7) for n in range(BARS)],
        "laptop": [None if n % 9 == 0 else 2.0 for n in range(BARS)],
    }
    return await page(
        visit,
        "kit.html",
        title="Components",
        asked=asked,
        soon=now + timedelta(seconds=42),
        bars=stacked([("completed", times), ("failed", times[::5])], shows),
        lines=lines(use, shows),
    )
