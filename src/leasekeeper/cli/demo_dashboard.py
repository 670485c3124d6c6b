"""Serves the dashboard of the demo's store on this machine until Ctrl-C, with a link that signs in once."""

import asyncio
import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from leasekeeper.demo.folder import Place

TOKEN_LIVES: Final = timedelta(days=1)


def keep_open(place: "Place") -> None:
    """Serve until Ctrl-C."""
    asyncio.run(_serve(place))


async def _serve(place: "Place") -> None:
    from leasekeeper import config as settings
    from leasekeeper.core.tokens import Scope
    from leasekeeper.service.app import make_app
    from leasekeeper.service.auth import create_token
    from leasekeeper.service.serving import Address, serving
    from leasekeeper.service.state import Service
    from leasekeeper.stores import open_store

    config = settings.load(place.environ())
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    store = await open_store(config.store, policy=config.policy)
    try:
        service = Service(store, config)
        token = await create_token(store, "demo", [Scope.ADMIN], actor="demo", expires_after=TOKEN_LIVES)
        async with service.running(), serving(make_app(service), Address(port=0)) as url:
            link = service.links.make(url, token.text)
            click.echo(f"\nthe dashboard, until Ctrl-C; this link signs in once:\n  {link}")
            await stop.wait()
    finally:
        await store.close()
    click.echo("\nthe dashboard is closed")
