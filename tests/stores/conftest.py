"""A Redis server for one test alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_store import DurableRedis, redis_server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[DurableRedis]:
    """A Redis that this test may kill."""
    with redis_server(tmp_path) as server:
        yield server
