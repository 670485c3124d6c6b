"""Credentials by reference: `env:NAME` or `file:PATH` → user and password, at the last moment, never in a message.

What `secret:NAME` leads to is for `runtime.secrets`: the store hands it out. Here it is only read as user:password.
"""

import os
from collections.abc import Mapping

from leasekeeper.core.browsers import Credentials
from leasekeeper.errors import InputError
from leasekeeper.secret_files import OTHERS, read_secret_file


def resolve_credentials(reference: str | None, environ: Mapping[str, str] | None = None) -> Credentials | None:
    """What `env:NAME` or `file:PATH` leads to, written as user:password. Raises InputError that shows no secret."""
    if reference is None:
        return None
    kind, _, place = reference.partition(":")
    if kind == "env" and place:
        text = (os.environ if environ is None else environ).get(place)
        if text is None:
            raise InputError(f"credentials {reference}: this worker has no environment variable {place}")
    elif kind == "file" and place:
        text = read_secret_file(place, f"credentials {reference}", refuse=OTHERS)
    else:
        raise InputError(
            "credentials must be written as env:NAME, file:PATH or secret:NAME, never as the secret itself"
        )
    return read_credentials(text, reference)


def read_credentials(text: str, reference: str) -> Credentials:
    """What a reference led to, written as user:password. Raises InputError that shows no secret."""
    username, colon, password = text.strip("\r\n").partition(":")
    if not colon or not username or not password:
        raise InputError(f"credentials {reference}: what is there is not written as user:password")
    if any(ord(character) < 32 for character in text.strip("\r\n")):
        raise InputError(f"credentials {reference}: must be one line, user:password")
    return Credentials(username=username, password=password)
