"""The browsers that this process runs for jobs, by run: for whoever wants to look at one."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from leasekeeper.core.leases import Lease
from leasekeeper.driver_port import DevToolsClient, RunningBrowser


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run whose browser is open in this process."""

    lease: Lease
    browser: RunningBrowser

    @asynccontextmanager
    async def viewer(self) -> AsyncIterator[DevToolsClient]:
        """One more DevTools client of its browser, for as long as the block lasts. Raises ClientRefused."""
        client = await self.browser.add_client()
        try:
            yield client
        finally:
            await client.close()


_RUNNING: dict[str, LiveRun] = {}


def live_run(run_id: str) -> LiveRun | None:
    """The run, if this process has its browser open."""
    return _RUNNING.get(run_id)


@contextmanager
def shown(run: LiveRun) -> Iterator[None]:
    """The run can be looked at while the block lasts."""
    _RUNNING[run.lease.run_id] = run
    try:
        yield
    finally:
        del _RUNNING[run.lease.run_id]
