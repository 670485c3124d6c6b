"""Liveness and readiness, for load balancers and service managers, without a token.

They reveal nothing about the fleet, nor why the store is unavailable: that is in the log.
"""

from dataclasses import dataclass
from typing import Final

from leasekeeper.service.routing import Call, Route
from leasekeeper.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The server answers."""

    status: str
    version: str


async def healthz(_call: Call) -> Health:
    return Health(status="ok", version=__version__)


async def readyz(call: Call) -> Health:
    await call.service.store.check()
    return Health(status="ok", version=__version__)


ROUTES: Final = (
    Route(
        method="GET",
        path="/healthz",
        summary="Whether the process answers.",
        handler=healthz,
        needs=None,
        answers=Health,
        tag="service",
    ),
    Route(
        method="GET",
        path="/readyz",
        summary="Whether the store can be used; 503 if not.",
        handler=readyz,
        needs=None,
        answers=Health,
        tag="service",
    ),
)
