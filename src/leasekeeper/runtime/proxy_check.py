"""The proxy of a run: its login, and the probe that finds out where it really exits, before and after the run."""

import logging
from dataclasses import replace
from typing import Final

from leasekeeper.browsers.probe import Probe, ProbeResult, connect_fault, probe
from leasekeeper.config import SecretConfig
from leasekeeper.core.accounts import Proxy, ProxyTrouble
from leasekeeper.core.browsers import Credentials
from leasekeeper.core.failures import Reason
from leasekeeper.core.proxies import ProxyReport
from leasekeeper.errors import Fail, LeasekeeperError, LeaseLost, SecretUnusable, StoreError
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime.secrets import proxy_credentials
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)


class ProxyCheck:
    """Checks proxies for one worker. Every login that it reads is redacted from then on."""

    def __init__(self, store: Store, probe_url: str | None, secrets: SecretConfig, redactor: Redactor) -> None:
        self._store = store
        self._secrets = secrets
        self._probe_url = probe_url
        self._redactor = redactor

    async def credentials(self, grant: Grant) -> Credentials | None:
        """The login of the lease's proxy, if it has one. Raises Fail if the login cannot be read, LeaseLost if the
        lease is lost."""
        try:
            found = await proxy_credentials(self._store, grant, self._secrets)
        except LeaseLost:
            raise
        except (SecretUnusable, StoreError) as error:
            raise Fail(Reason.SECRET_UNAVAILABLE, f"{error.code}: {error.message}") from error
        except LeasekeeperError as error:
            raise Fail(Reason.PROXY_UNREACHABLE, error.message) from error
        if found is not None:
            self._redactor.add(found.password, found.basic)
        return found

    async def probe(self, proxy: Proxy | None, credentials: Credentials | None) -> Probe | None:
        """Request the probe URL through the proxy. Returns None if there is no proxy, or no probe is configured."""
        if proxy is None or self._probe_url is None:
            return None
        found = await run_in_thread(
            probe, proxy.server, self._probe_url, credentials=credentials, expected=proxy.region
        )
        redact = self._redactor.text
        return replace(found, seen=redact(found.seen), region=redact(found.region), detail=redact(found.detail))

    async def probe_before_launch(self, proxy: Proxy | None, credentials: Credentials | None) -> Probe | None:
        """Probe the proxy. If it is not as declared, report that to the store and raise ProxyNotReady."""
        found = await self.probe(proxy, credentials)
        if proxy is None or found is None or found.result is ProbeResult.OK:
            return found
        trouble = trouble_of(found)
        await self._report(report_on(proxy, trouble, found.detail))
        raise ProxyNotReady(_REASONS[trouble or ProxyTrouble.UNREACHABLE], found.detail)

    async def confirm_unreachable(self, proxy: Proxy | None, credentials: Credentials | None) -> str | None:
        """After a run that could not get through its proxy: check the proxy. Returns why it cannot be reached, and
        reports that to the store; None if it can be reached."""
        if proxy is None:
            return None
        found = await self.probe(proxy, credentials)
        if found is None:
            fault = await run_in_thread(connect_fault, proxy.server)
        else:
            fault = found.detail if found.result is ProbeResult.FAILED else None
        if fault is not None:
            await self._report(report_on(proxy, ProxyTrouble.UNREACHABLE, fault))
        return fault

    async def _report(self, report: ProxyReport) -> None:
        """Report to the store. An error is only logged: the job is given back in any case, and the next run finds the
        same."""
        try:
            await self._store.report_proxy(report)
        except LeasekeeperError as error:
            _LOG.warning("the problem with proxy %s could not be stored: %s", report.proxy_id, error)


class ProxyNotReady(Fail):
    """The proxy is not as declared. This is not a failure of the job."""


_REASONS: Final = {
    ProxyTrouble.MISMATCH: Reason.PROXY_REGION_MISMATCH,
    ProxyTrouble.UNREACHABLE: Reason.PROXY_UNREACHABLE,
}


def trouble_of(found: Probe) -> ProxyTrouble | None:
    """The trouble that a probe found; None if the proxy is as declared."""
    match found.result:
        case ProbeResult.OK:
            return None
        case ProbeResult.CHANGED:
            return ProxyTrouble.MISMATCH
        case ProbeResult.FAILED:
            return ProxyTrouble.UNREACHABLE


def report_on(proxy: Proxy, trouble: ProxyTrouble | None, detail: str = "") -> ProxyReport:
    """A report about a proxy, with the server and region that it had when it was checked. `trouble` None: it is
    well."""
    return ProxyReport(
        proxy_id=proxy.proxy_id, server=proxy.server, region=proxy.region, trouble=trouble, detail=detail
    )
