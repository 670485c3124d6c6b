"""The rows of the route table, one module per noun. `ROUTES` is all of them."""

from typing import Final

from leasekeeper.service.routes import (
    conflicts,
    control,
    deciding,
    evidence,
    health,
    live,
    metrics,
    records,
    reference,
    sealing,
    session_humans,
    sessions,
    snapshots,
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
    *control.ROUTES,
    *sessions.ROUTES,
    *session_humans.ROUTES,
    *records.ROUTES,
    *conflicts.ROUTES,
    *sealing.ROUTES,
    *evidence.ROUTES,
    *snapshots.ROUTES,
    *deciding.ROUTES,
    *store.ROUTES,
)
