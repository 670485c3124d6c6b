"""The rows of the route table, one module per noun. `ROUTES` is all of them."""

from typing import Final

from leasekeeper.service.routes import (
    deciding,
    evidence,
    health,
    live,
    metrics,
    records,
    reference,
    sealing,
    sessions,
    store,
    work,
)
from leasekeeper.service.routing import Route

ROUTES: Final[tuple[Route, ...]] = (
    *health.ROUTES,
    *reference.ROUTES,
    *live.ROUTES,
    *metrics.ROUTES,
    *work.ROUTES,
    *sessions.ROUTES,
    *records.ROUTES,
    *sealing.ROUTES,
    *evidence.ROUTES,
    *deciding.ROUTES,
    *store.ROUTES,
)
