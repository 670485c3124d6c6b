"""schemathesis over the whole OpenAPI document against the running server, on both stores: no 5xx, nothing that the
document denies.

The same requests every time; `make test-all` sends more of them.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from leasekeeper.service.routes import ROUTES
from leasekeeper.service.routes.reference import document
from tests.servers import PostgresServer, new_database
from tests.serving import Served, ServerThread

# What a request is refused for is the same on both stores.
DAILY, LONGER = {"sqlite": 5, "postgres": 2}, 100
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


@pytest.fixture(scope="session")
def on_sqlite(server: ServerThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = server.serve(f"sqlite:///{tmp_path_factory.mktemp('schema')}/leasekeeper.db")
    yield served
    served.close()


@pytest.fixture(scope="session")
def on_postgres(server: ServerThread, postgres: PostgresServer, migrated_postgres: str) -> Iterator[Served]:
    served = server.serve(new_database(postgres, like=migrated_postgres))
    yield served
    served.close()


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest) -> Served:
    served: Served = request.getfixturevalue(f"on_{request.param}")
    return served


def fuzz(served: Served, row: Any, examples: int) -> None:
    operation = SCHEMA[row.path][row.method]

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def once(data: Any) -> None:
        case = data.draw(operation.as_strategy())
        response = case.call(base_url=served.url, headers=served.headers)
        case.validate_response(response, checks=CHECKS)

    once()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.path}")
def test_no_request_breaks_the_server_or_the_schema(shop: Served, row: Any, request: pytest.FixtureRequest) -> None:
    fuzz(shop, row, DAILY[request.node.callspec.params["shop"]])


@pytest.mark.release  # the daily test sends fewer of the same requests
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.path}")
def test_no_request_of_many_breaks_the_server_or_the_schema(shop: Served, row: Any) -> None:
    fuzz(shop, row, LONGER)
