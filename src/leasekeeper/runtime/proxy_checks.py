"""Checks proxies in trouble again, and frees them when they are well. Workers and sweepers do so.

With `probe_url` a proxy is probed. Without it, or without the proxy's login, this machine only checks whether it can
connect: it cannot tell where the proxy exits, and leaves a region mismatch to other machines.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from leasekeeper.browsers.probe import connect_fault, probe
from leasekeeper.config import BrowserConfig
from leasekeeper.core.accounts import Proxy, ProxyTrouble
from leasekeeper.core.browsers import Credentials
from leasekeeper.core.ids import ProxyId
from leasekeeper.core.proxies import ProxyReport
from leasekeeper.errors import LeasekeeperError
from leasekeeper.evidence.redact import Redactor
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Store
from leasekeeper.runtime.proxy_check import report_on, trouble_of
from leasekeeper.runtime.secrets import declared_credentials
from leasekeeper.threads import run_in_thread

MAX_ASKED: Final = 16  # at once, and in one pass


@dataclass(frozen=True, slots=True)
class _Login:
    """The login of a proxy, as far as this machine has it."""

    known: bool
    credentials: Credentials | None = None


class ProxyAsker:
    """Checks proxies in trouble when they are due."""

    def __init__(self, store: Store, config: BrowserConfig) -> None:
        self._store = store
        self._config = config
        self.in_trouble = False
        """Whether the last query found any proxy in trouble, due or not."""
        self._left_to_others: set[ProxyId] = set()

    async def ask_due(self) -> int:
        """Check up to `MAX_ASKED` proxies that are due, and report to the store. Returns how many are well again."""
        due = await self._due()
        reports = await asyncio.gather(*(self._ask(proxy) for proxy in due))
        freed = 0
        for report in reports:
            if report is not None:
                await self._store.report_proxy(report)
                freed += report.trouble is None
        return freed

    async def _due(self) -> list[Proxy]:
        """The first few proxies that are due. Those that this machine could not judge before stay due and come last, so
        that they do not take the place of proxies that it can free."""
        due: list[Proxy] = []
        last: list[Proxy] = []
        after: str | None = None
        self.in_trouble = False
        while len(due) < MAX_ASKED:
            page = await self._store.find(Proxy, {"trouble": "1"}, after=after, limit=MAX_IN_PAGE)
            if page.items:
                self.in_trouble = True
                now = (await self._store.check()).now
                for proxy in page.items:
                    if (proxy.ask_at is None or proxy.ask_at <= now) and not self._cannot_judge(proxy):
                        (last if proxy.proxy_id in self._left_to_others else due).append(proxy)
            after = page.after
            if after is None:
                break
        return [*due, *last][:MAX_ASKED]

    def _cannot_judge(self, proxy: Proxy) -> bool:
        """Whether this machine cannot judge the proxy: without a probe it does not know where the proxy exits."""
        return proxy.trouble is ProxyTrouble.MISMATCH and self._config.probe_url is None

    async def _ask(self, proxy: Proxy) -> ProxyReport | None:
        """Check the proxy. Returns the report about it; None if this machine cannot judge it."""
        login = await self._login(proxy)
        if self._config.probe_url is None or not login.known:
            if proxy.trouble is ProxyTrouble.MISMATCH:
                self._left_to_others.add(proxy.proxy_id)
                return None
            fault = await run_in_thread(connect_fault, proxy.server)
            return report_on(proxy, None if fault is None else ProxyTrouble.UNREACHABLE, fault or "")
        self._left_to_others.discard(proxy.proxy_id)
        found = await run_in_thread(
            probe, proxy.server, self._config.probe_url, credentials=login.credentials, expected=proxy.region
        )
        secrets = (login.credentials.password, login.credentials.basic) if login.credentials else ()
        return report_on(proxy, trouble_of(found), Redactor(secrets).text(found.detail))

    async def _login(self, proxy: Proxy) -> _Login:
        try:
            return _Login(True, await declared_credentials(self._store, proxy, self._config.secrets))
        except LeasekeeperError:
            return _Login(False)
