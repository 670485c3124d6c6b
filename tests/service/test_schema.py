"""schemathesis over the whole OpenAPI document against the running server, on both stores: no 5xx, nothing that the
document denies.

The same requests every time, well-formed and malformed, about records that are there and others; `make test-all` sends
more of them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from leasekeeper.core.decisions import Action, Review
from leasekeeper.core.notes import Note
from leasekeeper.service.routes import ROUTES
from leasekeeper.service.routes.reference import document
from tests.conformance.places import Place
from tests.conformance.world import POLICY, Clock, World, limit, profile, proxy, schedule
from tests.servers import PostgresServer, new_database
from tests.serving import Served, ServerThread

# How many requests of each kind; what they are refused for is the same on both stores.
DAILY: dict[str, dict[str, int]] = {
    "sqlite": {"any": 3, "known": 2, "malformed": 2},
    "postgres": {"any": 1, "known": 1, "malformed": 0},
}
LONGER = {"any": 40, "known": 30, "malformed": 40}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SCHEMA = schemathesis.openapi.from_dict(document())
# A long poll waits for as long as it is asked to, a stream does not end; their arguments are those of the other calls.
ROWS = [row for row in ROUTES if row.path != "/v1/store/wait" and row.media != "text/event-stream"]


@dataclass
class Site:
    """A served store, and the id of a record of each kind in it, by the noun of its path."""

    served: Served
    known: dict[str, str]


async def seed(world: World) -> dict[str, str]:
    """Records of most kinds. Some requests change them: then others are refused for another reason."""
    profiles = (profile(name, name) for name in ("p1", "p2", "p3", "p4"))
    await world.declare(*profiles, proxy(), limit("default", 50), schedule())
    await world.offer("visit")
    await world.finish(await world.run("p3"), "SECURITY_PROMPT")
    grant, job = await world.acquire("p2"), await world.add("p4")
    await world.decide_profile(Action.NOTE, "p1", note="two orders")
    await world.pause("all")
    return {
        "profiles": "p1",
        "accounts": "p1",
        "proxies": "exit_us",
        "limits": "default",
        "schedules": "nightly",
        "endpoints": (await world.endpoint("hook")).endpoint_id,
        "secrets": (await world.secret("job-key")).name,
        "tokens": (await world.token("t00000000000")).token_id,
        "pauses": "all",
        "jobs": job.job_id,
        "leases": grant.lease.lease_id,
        "runs": grant.lease.run_id,
        "workers": "w1",
        "reviews": (await world.all(Review))[0].review_id,
        "notes": (await world.all(Note))[0].note_id,
        "webhooks": (await world.owe("https://hooks.test/in")).delivery_id,
    }


def serve(server: ServerThread, url: str) -> Site:
    served = server.serve(url)
    world = World(url, served.store, Clock(), POLICY, Place(url=url))
    return Site(served, served.run(seed(world)))


@pytest.fixture(scope="session")
def on_sqlite(server: ServerThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = serve(server, f"sqlite:///{tmp_path_factory.mktemp('schema')}/leasekeeper.db")
    yield site
    site.served.close()


@pytest.fixture(scope="session")
def on_postgres(server: ServerThread, postgres: PostgresServer, migrated_postgres: str) -> Iterator[Site]:
    site = serve(server, new_database(postgres, like=migrated_postgres))
    yield site
    site.served.close()


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest) -> Site:
    site: Site = request.getfixturevalue(f"on_{request.param}")
    return site


def strategies(site: Site, row: Any) -> dict[str, Any]:
    """Requests as the document allows them: about any id, or one that is there; and those that it does not allow."""
    operation = SCHEMA[row.path][row.method]
    found = {"any": operation.as_strategy()}
    names = re.findall(r"{(\w+)}", row.path)
    known = site.known.get(row.path.split("/")[2]) if names else None
    if known is not None:
        found["known"] = operation.as_strategy(path_parameters={names[0]: known})
    if names or row.parameters or row.body is not None:
        found["malformed"] = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    return found


def fuzz(site: Site, row: Any, examples: dict[str, int]) -> None:
    for kind, strategy in strategies(site, row).items():

        @settings(
            max_examples=max(1, examples[kind]),
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=strategy)
        def once(case: Any) -> None:
            response = case.call(base_url=site.served.url, headers=site.served.headers)
            case.validate_response(response, checks=CHECKS)

        if examples[kind]:
            once()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.path}")
def test_no_request_breaks_the_server_or_the_schema(shop: Site, row: Any, request: pytest.FixtureRequest) -> None:
    fuzz(shop, row, DAILY[request.node.callspec.params["shop"]])


@pytest.mark.release  # the daily test sends fewer of the same requests
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.path}")
def test_no_request_of_many_breaks_the_server_or_the_schema(shop: Site, row: Any) -> None:
    fuzz(shop, row, LONGER)
