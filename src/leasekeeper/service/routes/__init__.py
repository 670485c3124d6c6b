"""The rows of the route table, one module per noun. `ROUTES` is all of them."""

from typing import Final

from leasekeeper.service.routes import evidence, health, live, metrics
from leasekeeper.service.routing import Route

ROUTES: Final[tuple[Route, ...]] = (*evidence.ROUTES, *health.ROUTES, *live.ROUTES, *metrics.ROUTES)
