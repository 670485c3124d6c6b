"""Lets the user who started a server on loopback use it without typing a token: this process makes one, and writes it
to a file of that user. It is in no store, so it is useless once the server has stopped.
"""

import hashlib
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from leasekeeper.core.tokens import SECRET_BYTES, ApiToken, Scope, StoredToken, hash_of, token_id_from, token_text
from leasekeeper.errors import InputError
from leasekeeper.local_tokens import is_loopback, read_local_token, remove_local_token, token_file, write_local_token
from leasekeeper.service.auth import Authenticator

NAME = "this machine"
_LOG = logging.getLogger(__name__)


@contextmanager
def local_access(auth: Authenticator, store: str, url: str, now: datetime) -> Iterator[Path | None]:
    """Accept the local token while the block runs. Gives its file; None if it cannot be written, which is no error.

    Its id is that of the store, so that leases of local workers are theirs after a restart. After a crash the token
    stays the same, for the same reason; after a stop it is a new one.
    """
    place = token_file(url, os.environ) if is_loopback(urlsplit(url).hostname or "") else None
    if place is None:
        yield None
        return
    token_id = token_id_from(hashlib.sha256(store.encode()).digest()[:16])
    try:
        text = _left_behind(url, token_id) or token_text(token_id, secrets.token_bytes(SECRET_BYTES))
        write_local_token(place, text)
    except OSError as error:
        _LOG.warning("no token file for this machine: %s cannot be written (%s)", place, error.strerror)
        yield None
        return
    token = ApiToken(token_id=token_id, name=NAME, scopes=(Scope.ADMIN,), created_at=now, created_by="server")
    auth.local = StoredToken(token=token, hash=hash_of(text), now=now)
    try:
        yield place
    finally:
        auth.local = None
        remove_local_token(place, text)


def _left_behind(url: str, token_id: str) -> str:
    """The token that a server of this store left here when it crashed."""
    try:
        text = read_local_token(url, os.environ)
    except InputError:
        return ""  # others could read it
    return text if text.startswith(f"lk_{token_id}_") else ""
