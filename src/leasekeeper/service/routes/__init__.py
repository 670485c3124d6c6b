"""The rows of the route table, one module per noun. `ROUTES` is all of them."""

from typing import Final

from leasekeeper.service.routes import health, live, metrics
from leasekeeper.service.routing import Route

ROUTES: Final[tuple[Route, ...]] = (*health.ROUTES, *live.ROUTES, *metrics.ROUTES)
