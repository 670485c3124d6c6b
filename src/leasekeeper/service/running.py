"""`leasekeeper server` as a function: store, API and housekeeping in one process, until asked to stop."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from leasekeeper.config import Config
from leasekeeper.core.tokens import ApiToken, Scope
from leasekeeper.ports import Store
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.runtime.outbox import sender_of
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.up import background_tasks, wait_for_end
from leasekeeper.service.app import make_app
from leasekeeper.service.auth import create_token
from leasekeeper.service.serving import Address, check_address, serving
from leasekeeper.service.state import Service
from leasekeeper.stores import open_store

GRACE = timedelta(seconds=5)


async def run_server(
    config: Config,
    address: Address,
    *,
    hosts: tuple[str, ...] = (),
    stop: Shutdown | None = None,
    first_token: Callable[[str], None],
    ready: Callable[[str], None],
) -> None:
    """Serve, sweep and send webhooks until asked to stop.

    `first_token` gets the text of an admin token if the store had no token at all; `ready` the address.
    """
    check_address(address)
    stop = stop or Shutdown(GRACE)
    store = await open_store(config.store, policy=config.policy)
    try:
        sender = await sender_of(store, config)
        service = Service(store, config, hosts=hosts)
        stop.listen()
        over = asyncio.Event()
        async with service.running(), serving(make_app(service), address) as url:
            text = await make_first_token(store)
            if text is not None:
                first_token(text)
            ready(url)
            trouble = FailureLog()
            tasks = [asyncio.create_task(each) for each in background_tasks(store, config, sender, trouble, over)]
            try:
                await stop.asked.wait()
            finally:
                over.set()
                await wait_for_end(tasks, stop.now)
                stop.done()
    finally:
        await store.close()


async def make_first_token(store: Store) -> str | None:
    """The text of a new admin token, if the store has no token yet: without one nobody could create one remotely."""
    if (await store.find(ApiToken, limit=1)).items:
        return None
    return (await create_token(store, "first start", [Scope.ADMIN], actor="server")).text
