"""References to stored secrets (`secret:NAME`) → plain values, where they are used and not before.

A proxy's secret is handed out by the store to the holder of a live lease alone.
"""

from dataclasses import replace

from leasekeeper.browsers.secrets import read_credentials, resolve_credentials
from leasekeeper.config import Config, SecretConfig, WebhookConfig
from leasekeeper.core.browsers import Credentials
from leasekeeper.core.secrets import secret_name
from leasekeeper.encryption import open_lease_secret, read_keyring
from leasekeeper.errors import SecretNotFound
from leasekeeper.ports import Grant, Store
from leasekeeper.threads import run_in_thread


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


async def webhook_settings(store: Store, config: Config) -> WebhookConfig:
    """The settings of webhooks with the values of the secrets that they name."""
    return replace(config.webhooks, secret=await _resolved(store, config.webhooks.secret, config.secrets))


async def _resolved(store: Store, text: str, config: SecretConfig) -> str:
    """A setting of several words, with the value of each `secret:NAME` in its place."""
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
