"""`GET /metrics`: for Prometheus. Needs scope `read`; with the setting `metrics_open` this machine needs no token."""

from typing import Final

from starlette.responses import Response

from leasekeeper.core.tokens import OPERATIONS
from leasekeeper.service.routing import Call, Route

# As `prometheus_client` writes it.
MEDIA: Final = "text/plain; version=1.0.0; charset=utf-8"


async def metrics(call: Call) -> Response:
    """All metrics, for a scrape."""
    counted = await call.service.signals.metrics()
    return Response(await counted.text(), media_type=MEDIA)


ROUTES: Final = (
    Route(
        method="GET",
        path="/metrics",
        summary="Metrics in Prometheus' text format.",
        handler=metrics,
        needs=OPERATIONS["stats"],
        open_to_this_machine=True,
        media=MEDIA,
        tag="service",
    ),
)
