"""What a running service holds: its store, its settings, and whoever checks tokens. One for a process and a store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from leasekeeper.config import Config
from leasekeeper.ports import Store
from leasekeeper.service.auth import Authenticator
from leasekeeper.service.signals import Signals


@dataclass(slots=True)
class Service:
    """The service around one open store. Whoever opened the store closes it."""

    store: Store
    config: Config
    # Names that a browser or a proxy may call this server by, besides addresses and this machine's own names.
    hosts: tuple[str, ...] = ()
    auth: Authenticator = field(init=False)
    signals: Signals = field(init=False)

    def __post_init__(self) -> None:
        self.auth = Authenticator(self.store)
        self.signals = Signals(self.store, self.config)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Whatever runs beside the requests runs inside of this."""
        try:
            yield
        finally:
            await self.signals.close()
            await self.auth.close()
