"""Asks sentinels where the primary is. Each new connection asks again, so reconnecting follows a failover.

A sentinel that was cut off may name a primary that was replaced. So all sentinels are asked, and the newest
configuration is used. That only finds the right server sooner: an old primary cannot grant leases because of its
setting `min-replicas-to-write`, which `check_durable` requires.
"""

from datetime import timedelta
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from leasekeeper.errors import StoreError, StoreUnavailable
from leasekeeper.stores.redis.urls import Sentinels, location, redact, sentinels

# The timeout for one sentinel: one that does not respond must not delay the connection for long.
ASK_SECONDS: Final = 2.0


def server_url(url: str, timeout: timedelta) -> str:
    """The URL of one server: the URL itself, or that of the primary that its sentinels name."""
    named = sentinels(url)
    if named is None:
        return url
    found: list[tuple[int, str, int]] = []
    problems: list[Exception] = []
    for address in named.addresses:
        try:
            found.append(_primary(named, address, min(timeout.total_seconds(), ASK_SECONDS)))
        except (redis.RedisError, OSError) as error:
            problems.append(error)
    if found:
        _, host, port = max(found)
        return named.url_of(host, port)
    unknown = [error for error in problems if isinstance(error, redis.ResponseError)]
    detail = redact(url, str((unknown or problems)[-1]))
    if any("No such master" in str(error) for error in unknown):
        raise StoreError(
            f"the sentinels at {location(url)} know no primary named {named.name}; check the name in the store's URL"
        )
    raise StoreUnavailable(f"none of the sentinels at {location(url)} answers ({detail}); check that they run")


def _primary(named: Sentinels, address: tuple[str, int], seconds: float) -> tuple[int, str, int]:
    """The primary that one sentinel names: the epoch of its configuration, host and port."""
    client = redis.Redis(
        host=address[0],
        port=address[1],
        password=named.password,
        ssl=named.tls,
        decode_responses=True,
        socket_timeout=seconds,
        socket_connect_timeout=seconds,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        known: Any = client.sentinel_master(named.name)
        return int(known["config-epoch"]), str(known["ip"]), int(known["port"])
    finally:
        client.close()
