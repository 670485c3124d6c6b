"""Turns references to stored secrets (`secret:NAME`) into plain values, where they are used and not before.

The store hands out the secrets of a proxy and of a job's payload only to the holder of a live lease.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from leasekeeper.browsers.secrets import read_credentials, resolve_credentials
from leasekeeper.config import Config, SecretConfig, WebhookConfig
from leasekeeper.core.accounts import Proxy
from leasekeeper.core.alerts import secret_of
from leasekeeper.core.browsers import Credentials
from leasekeeper.core.failures import Reason
from leasekeeper.core.leases import LeaseRef
from leasekeeper.core.secrets import JOB_PREFIX, secret_name
from leasekeeper.encryption import Keyring, open_lease_secret, read_keyring
from leasekeeper.errors import Fail, LeaseLost, SecretNotFound, SecretUnusable, StoreError
from leasekeeper.ports import Grant, Store
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.threads import run_in_thread
from leasekeeper.webhooks.message import Keys, read_keys

KEYS_KEPT_SECONDS: Final = 10.0


async def proxy_credentials(store: Store, grant: Grant, config: SecretConfig) -> Credentials | None:
    """User and password for the proxy of a lease. Raises InputError that shows neither, or LeaseLost."""
    reference = grant.proxy.credentials if grant.proxy else None
    name = secret_name(reference)
    if reference is None or name is None:
        return await run_in_thread(resolve_credentials, reference)
    secrets = await store.lease_secrets(grant.lease.ref)
    found = next((secret for secret in secrets if secret.name == name), None)
    if found is None:
        raise _not_there(name)
    return read_credentials(await run_in_thread(open_lease_secret, found, config), reference)


async def payload_secret(store: Store, ref: LeaseRef, reference: str, config: SecretConfig) -> str:
    """The value of a secret that the payload of a lease's job names. Raises Fail if the value cannot be read, or
    LeaseLost."""
    name = secret_name(reference)
    try:
        if name is None or not name.startswith(JOB_PREFIX):
            raise SecretNotFound(f"a task gets only secrets whose name begins with {JOB_PREFIX}", secret=name)
        found = next((secret for secret in await store.lease_secrets(ref) if secret.name == name), None)
        if found is None:
            raise SecretNotFound(f"secret {name} is not in the store, or not in the job's payload", secret=name)
        return await run_in_thread(open_lease_secret, found, config)
    except LeaseLost:
        raise
    except (SecretUnusable, StoreError) as error:
        # The code comes last: before a colon it would look like a secret, and its message would be redacted.
        raise Fail(Reason.SECRET_UNAVAILABLE, f"{error.message} ({error.code})") from error


async def declared_credentials(store: Store, proxy: Proxy, config: SecretConfig) -> Credentials | None:
    """User and password for a proxy, for a check without a lease. Raises a LeasekeeperError."""
    reference = proxy.credentials
    if reference is None or secret_name(reference) is None:
        return await run_in_thread(resolve_credentials, reference)
    return read_credentials(await _resolved(store, reference, config), reference)


async def webhook_settings(store: Store, config: Config) -> WebhookConfig:
    """The settings of webhooks with the values of the secrets that they name."""
    return replace(config.webhooks, secret=await _resolved(store, config.webhooks.secret, config.secrets))


@dataclass(slots=True)
class _EndpointKeys:
    """The signing keys of registered endpoints, each cached for a few seconds, so that a changed secret soon takes
    effect."""

    store: Store
    keyring: Keyring
    _known: dict[str, tuple[float, Keys]] = field(default_factory=dict)

    async def __call__(self, endpoint_id: str) -> Keys:
        now = boot_time()
        at, keys = self._known.get(endpoint_id, (0.0, None))
        if keys is None or now > at + KEYS_KEPT_SECONDS:
            keys = await self._read(secret_of(endpoint_id))
            self._known[endpoint_id] = (now, keys)
        return keys

    async def _read(self, name: str) -> Keys:
        sealed = await self.store.sealed_secrets([name])
        keys = read_keys(self.keyring.open(sealed[0]), f"secret {name}") if sealed else None
        if keys is None:
            raise _not_there(name)
        return keys


async def endpoint_keys_of(store: Store, config: SecretConfig) -> Callable[[str], Awaitable[Keys]] | None:
    """A function that returns the signing keys of an endpoint; None if no key for stored secrets is set here."""
    if not config.keys and not config.file:
        return None
    return _EndpointKeys(store, await run_in_thread(read_keyring, config))


async def _resolved(store: Store, text: str, config: SecretConfig) -> str:
    """The setting with each word `secret:NAME` replaced by the secret's value."""
    names = [name for name in map(secret_name, text.split()) if name is not None]
    if not names:
        return text
    sealed = {secret.name: secret for secret in await store.sealed_secrets(names)}
    keyring = await run_in_thread(read_keyring, config)
    values = []
    for word in text.split():
        name = secret_name(word)
        if name is not None and name not in sealed:
            raise _not_there(name)
        values.append(word if name is None else keyring.open(sealed[name]))
    return " ".join(values)


def _not_there(name: str) -> SecretNotFound:
    return SecretNotFound(f"there is no secret {name} in the store", secret=name)
