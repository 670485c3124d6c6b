"""A Redis behind a proxy that freezes: connections stay open and carry nothing more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from leasekeeper.stores import migrate, open_store
from leasekeeper.stores.redis.notifications import CHANNEL
from tests.conformance.world import POLICY, fleet, profile, spec
from tests.redis_store import DurableRedis

PATIENT = replace(POLICY, store_timeout=timedelta(seconds=1))
# Far longer than the listener may take: whoever still waits then would wait for ever.
FOR_EVER = 120.0
PIECE = 65536


class Door:
    """Leads to the server. `freeze` makes every connection silent, but no new one."""

    def __init__(self, server: DurableRedis) -> None:
        self._server = server
        self._open: set[asyncio.Event] = set()

    def freeze(self) -> None:
        for each in self._open:
            each.set()

    async def carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        far, to = await asyncio.open_unix_connection(self._server.socket)
        frozen = asyncio.Event()
        self._open.add(frozen)
        await asyncio.gather(_pass(near, to, frozen), _pass(far, back, frozen))


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter, frozen: asyncio.Event) -> None:
    with suppress(OSError):
        while data := await source.read(PIECE):
            if not frozen.is_set():
                sink.write(data)
                await sink.drain()
    sink.close()


@asynccontextmanager
async def door_to(server: DurableRedis, folder: Path) -> AsyncIterator[tuple[Door, str]]:
    door = Door(server)
    listener = await asyncio.start_unix_server(door.carry, folder / "door")
    try:
        yield door, f"redis+unix://{folder / 'door'}"
    finally:
        listener.close()


async def test_who_listens_on_a_frozen_connection_hears_again_over_a_new_one(
    store_redis: DurableRedis, redis_url: str, short_dir: Path
) -> None:
    await migrate(redis_url)
    changing = await open_store(redis_url, policy=POLICY)
    async with door_to(store_redis, short_dir) as (door, url):
        waiting = await open_store(url, policy=PATIENT)
        try:
            async with asyncio.timeout(FOR_EVER):
                await changing.apply(fleet(profile("p1")), actor="ann")
                heard = asyncio.create_task(waiting.wait("default", timedelta(minutes=5)))
                while b":1" not in store_redis.call("PUBSUB", "NUMSUB", CHANNEL):  # noqa: ASYNC110 - it is on a server
                    await asyncio.sleep(0.02)  # waits: for the thread that listens to be there
                door.freeze()
                while not heard.done():
                    await changing.submit([spec("p1")])
                    await asyncio.wait({heard}, timeout=0.2)
        finally:
            await waiting.close()
            await changing.close()
