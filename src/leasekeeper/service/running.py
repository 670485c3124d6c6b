"""`leasekeeper server` as a function: store, API and housekeeping in one process, until asked to stop."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

from leasekeeper.config import Config
from leasekeeper.core.tokens import ApiToken, Scope
from leasekeeper.errors import InputError
from leasekeeper.local_tokens import read_local_token
from leasekeeper.ports import Store
from leasekeeper.runtime.failure_log import FailureLog
from leasekeeper.runtime.outbox import sender_of
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.runtime.up import background_tasks, wait_for_end
from leasekeeper.service.app import make_app
from leasekeeper.service.auth import create_token
from leasekeeper.service.call_times import timed
from leasekeeper.service.local_access import local_access
from leasekeeper.service.serving import Address, check_address, serving
from leasekeeper.service.state import Service
from leasekeeper.stores import absolute, open_store

GRACE = timedelta(seconds=5)


async def run_server(
    config: Config,
    address: Address,
    *,
    hosts: tuple[str, ...] = (),
    sessions: int = 0,
    stop: Shutdown | None = None,
    first_token: Callable[[str], None],
    ready: Callable[[str, str | None], None],
) -> None:
    """Serve, sweep and send webhooks until asked to stop.

    `first_token` gets the text of an admin token if the store had no token at all; `ready` the address, and the link
    that signs in to the pages once, on loopback.
    """
    check_address(address)
    stop = stop or Shutdown(GRACE)
    store = await open_store(config.store, policy=config.policy)
    try:
        sender = await sender_of(store, config)
        stop.listen()
        over = asyncio.Event()
        async with served(store, config, address, hosts=hosts, sessions=sessions) as (_, url, link):
            text = await make_first_token(store)
            if text is not None:
                first_token(text)
            ready(url, link)
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


@asynccontextmanager
async def served(
    store: Store, config: Config, address: Address, *, hosts: tuple[str, ...] = (), sessions: int = 0
) -> AsyncIterator[tuple[Service, str, str | None]]:
    """Serve an open store until the block ends. Gives the address, and a link that signs in to its pages once.

    The link is for the user who started the server on this machine; None if that user has no token file.
    """
    service = Service(store, config, hosts=hosts, behind_proxy=address.behind_tls_proxy, sessions=sessions)
    now = (await store.check()).now
    async with service.running(), serving(make_app(service), address) as url:
        with local_access(service.auth, absolute(config.store), url, now) as file:
            try:
                yield (
                    service,
                    url,
                    service.links.make(url, read_local_token(url, os.environ)) if file is not None else None,
                )
            finally:
                await service.end_streams()


@asynccontextmanager
async def served_beside(
    store: Store, config: Config, port: int | None, ready: Callable[[str, str | None], None], *, sessions: int = 0
) -> AsyncIterator[Callable[[Store], Store]]:
    """The API of `up`: on loopback. If the default port is taken, a free one is used.

    Gives a wrapper for the worker's stores, so that their calls are in the metrics.
    """
    address = Address(host="127.0.0.1", port=config.server_port if port is None else port)
    async with AsyncExitStack() as stack:
        try:
            service, url, link = await stack.enter_async_context(served(store, config, address, sessions=sessions))
        except InputError:
            if port is not None:
                raise
            free = replace(address, port=0)
            service, url, link = await stack.enter_async_context(served(store, config, free, sessions=sessions))
        ready(url, link)
        yield partial(timed, called=service.signals.called)


async def make_first_token(store: Store) -> str | None:
    """The text of a new admin token, if the store has no token yet: without one nobody could create one remotely."""
    if (await store.find(ApiToken, limit=1)).items:
        return None
    return (await create_token(store, "first start", [Scope.ADMIN], actor="server")).text
