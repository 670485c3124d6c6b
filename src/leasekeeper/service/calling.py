"""One call of a server's API for a command: with the configured token, or the local token that a server on this machine
wrote.
"""

import os
from typing import Any, Final

import httpx2

from leasekeeper.config import Config
from leasekeeper.errors import StoreUnavailable
from leasekeeper.local_tokens import read_local_token
from leasekeeper.server_trust import authorization, trusted
from leasekeeper.wire import error_from_json

SECONDS: Final = 120.0


def post(config: Config, url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer. Raises the error that the server answered with, or StoreUnavailable."""
    token = config.token or read_local_token(url, os.environ)
    trust = trusted(url, config.store_ca)
    try:
        with httpx2.Client(base_url=url, headers=authorization(token), timeout=SECONDS, verify=trust) as client:
            answer = client.post(path, json=body)
            found: dict[str, Any] = answer.json()
    except (httpx2.TransportError, ValueError) as error:
        raise StoreUnavailable(
            f"no server answers at {url} ({error}): a browser is taken where it runs; name the server with --server"
        ) from None
    if answer.status_code >= 400:
        raise error_from_json({**found, "message": found.get("detail", "")})
    return found
