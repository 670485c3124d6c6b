"""The state of a running server: its store, its settings, its authenticator. One per process and store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from leasekeeper.config import Config
from leasekeeper.ports import Store
from leasekeeper.service.answers import CallsUnderWay
from leasekeeper.service.auth import Authenticator
from leasekeeper.service.call_log import logged
from leasekeeper.service.call_times import timed
from leasekeeper.service.long_polls import LongPolls
from leasekeeper.service.mcp import McpEndpoint
from leasekeeper.service.one_time_links import OneTimeLinks
from leasekeeper.service.permissions import Permissions
from leasekeeper.service.session_fleet import SessionFleet
from leasekeeper.service.signals import Signals
from leasekeeper.service.uploads import delete_left_uploads


class Service:
    """The server around one open store. The code that opened the store closes it.

    `hosts` are names that a browser or a proxy may call this server by, besides addresses and this machine's own names.
    `behind_proxy`: every caller is a proxy, which sends the client's address. `sessions` is how many browsers it runs
    at once for programs that ask for one.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        *,
        hosts: tuple[str, ...] = (),
        behind_proxy: bool = False,
        auth: Authenticator | None = None,
        sessions: int = 0,
    ) -> None:
        self.signals = Signals(store, config)
        self.store = logged(timed(store, self.signals.called))
        self.config = config
        self.hosts = hosts
        self.behind_proxy = behind_proxy
        self.auth = auth or Authenticator(store)
        self.permissions = Permissions(store)
        self.polls = LongPolls(store, config.poll_every)
        self.under_way = CallsUnderWay()
        self.links = OneTimeLinks()
        self.sessions = SessionFleet(store, config, sessions)
        self.agents = McpEndpoint(self.auth)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the background tasks while the block runs."""
        deleting = asyncio.create_task(delete_left_uploads(self.config.browsers.data_dir))
        try:
            yield
        finally:
            deleting.cancel()
            await asyncio.gather(deleting, return_exceptions=True)
            await self.agents.close()
            await self.sessions.close()
            await self.end_streams()
            await self.auth.close()

    async def end_streams(self) -> None:
        """End streams and long polls, so that a server that stops does not wait for them."""
        await self.polls.close()
        await self.signals.close()
