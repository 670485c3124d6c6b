"""`leasekeeper mcp`: tools for AI agents over the Model Context Protocol, on standard input and output."""

from typing import TYPE_CHECKING

import click

from leasekeeper.cli.options import sessions_option, store_option

if TYPE_CHECKING:
    from leasekeeper.config import Config


@click.command("mcp")
@sessions_option(4)
@store_option
def command(sessions: int, store: str | None) -> None:
    """Serve an agent on standard input and output: find profiles, open sessions, checkpoints, mutations, jobs.

    With a server as the store, tools call its API, and the token's scopes apply. With another store, the browsers of
    sessions run here. A server has the same tools at /mcp.

    \b
    leasekeeper --store https://leases.example.com mcp
    """
    import asyncio

    from leasekeeper.cli.connection import check_exists, settings
    from leasekeeper.cli.worker import log_to_stderr

    config = settings(store)
    check_exists(config.store)
    log_to_stderr(verbose=False, log_format=config.log_format)
    asyncio.run(_serve(config, sessions))


async def _serve(config: "Config", sessions: int) -> None:
    import os

    from leasekeeper.local_tokens import read_local_token
    from leasekeeper.server_trust import trusted
    from leasekeeper.service.mcp import serve_stdio
    from leasekeeper.service.running import served
    from leasekeeper.service.serving import Address
    from leasekeeper.stores import open_store

    if config.browsers.server is not None:
        await serve_stdio(config.store, config.token, trusted(config.store, config.store_ca))
        return
    opened = await open_store(config.store, policy=config.policy)
    try:
        async with served(opened, config, Address(port=0), sessions=sessions) as (_, url, _):
            await serve_stdio(url, read_local_token(url, os.environ))
    finally:
        await opened.close()
