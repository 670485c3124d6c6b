"""The runtime is tested on every store, by the clock on the wall: its subject is real time and real processes."""

import asyncio

import pytest

from leasehold.stores import migrate


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store, on disk and durable."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    asyncio.run(migrate(url))
    return url
