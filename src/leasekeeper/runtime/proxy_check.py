"""A profile's proxy before and after a run: its login, and the probe that says where it really exits."""

from dataclasses import replace

from leasekeeper.browsers.probe import Probe, ProbeResult, probe
from leasekeeper.config import SecretConfig
from leasekeeper.core.accounts import Proxy
from leasekeeper.core.browsers import Credentials
from leasekeeper.core.failures import Reason
from leasekeeper.errors import Fail, LeasekeeperError, LeaseLost, SecretUnusable, StoreError
from leasekeeper.evidence.redact import Redactor
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime.secrets import proxy_credentials
from leasekeeper.threads import run_in_thread


class ProxyCheck:
    """Checks proxies for one worker. Every login that it reads is redacted from then on."""

    def __init__(self, store: Store, probe_url: str | None, secrets: SecretConfig, redactor: Redactor) -> None:
        self._store = store
        self._secrets = secrets
        self._probe_url = probe_url
        self._redactor = redactor

    async def credentials(self, grant: Grant) -> Credentials | None:
        """The login of the lease's proxy, if it has one. Raises Fail if it cannot be had, LeaseLost if that is lost."""
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
        """Ask the probe's address through the proxy; None if there is no proxy, or no probe is configured."""
        if proxy is None or self._probe_url is None:
            return None
        found = await run_in_thread(
            probe, proxy.server, self._probe_url, credentials=credentials, expected=proxy.region
        )
        return replace(found, seen=self._redactor.text(found.seen), detail=self._redactor.text(found.detail))

    async def probe_before_launch(self, proxy: Proxy | None, credentials: Credentials | None) -> Probe | None:
        """The same; raises Fail unless the proxy is as it should be."""
        found = await self.probe(proxy, credentials)
        if found is None or found.result is ProbeResult.OK:
            return found
        failed = found.result is ProbeResult.FAILED
        raise Fail(Reason.PROXY_UNREACHABLE if failed else Reason.PROXY_REGION_MISMATCH, found.detail)
