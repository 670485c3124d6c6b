"""Proxies that something is wrong with are asked again, by whoever works or sweeps, and freed when they are well.

With `probe_url` they are probed; without it, or without their login, it only shows whether one can connect to them. A
machine that cannot tell where a proxy exits leaves a mismatch to others.
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
    """Asks proxies in trouble that are due."""

    def __init__(self, store: Store, config: BrowserConfig) -> None:
        self._store = store
        self._config = config
        self.in_trouble = False
        """Whether any proxy was in trouble when it was last asked for, due or not."""
        self._left_to_others: set[ProxyId] = set()

    async def ask_due(self) -> int:
        """Ask those whose time has come, a few, and report to the store. Returns how many are well again."""
        due = await self._due()
        reports = await asyncio.gather(*(self._ask(proxy) for proxy in due))
        freed = 0
        for report in reports:
            if report is not None:
                await self._store.report_proxy(report)
                freed += report.trouble is None
        return freed

    async def _due(self) -> list[Proxy]:
        """The first few that are due. What this machine could not tell stays due and comes last: else it would take the
        place of those that it can free."""
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
                    if (proxy.ask_at is None or proxy.ask_at <= now) and not self._is_beyond(proxy):
                        (last if proxy.proxy_id in self._left_to_others else due).append(proxy)
            after = page.after
            if after is None:
                break
        return [*due, *last][:MAX_ASKED]

    def _is_beyond(self, proxy: Proxy) -> bool:
        """Without a probe nobody can tell where it exits."""
        return proxy.trouble is ProxyTrouble.MISMATCH and self._config.probe_url is None

    async def _ask(self, proxy: Proxy) -> ProxyReport | None:
        """What is wrong with the proxy now; None: this machine cannot tell."""
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
