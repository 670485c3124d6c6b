"""What a running service holds: its store, its settings, and whoever checks tokens. One for a process and a store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from leasekeeper.config import Config
from leasekeeper.ports import Store
from leasekeeper.service.answers import Answers
from leasekeeper.service.auth import Authenticator
from leasekeeper.service.permissions import Permissions
from leasekeeper.service.signals import Signals


class Service:
    """The service around one open store. Whoever opened the store closes it.

    `hosts` are names that a browser or a proxy may call this server by, besides addresses and this machine's own names.
    """

    def __init__(
        self, store: Store, config: Config, *, hosts: tuple[str, ...] = (), auth: Authenticator | None = None
    ) -> None:
        self.store = store
        self.config = config
        self.hosts = hosts
        self.auth = auth or Authenticator(store)
        self.permissions = Permissions(store)
        self.signals = Signals(store, config)
        self.answers = Answers()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Whatever runs beside the requests runs inside of this."""
        try:
            yield
        finally:
            await self.signals.close()
            await self.auth.close()
