"""Proxy credentials from a reference, `env:NAME` or `file:PATH`. Read just before use, never shown in a message.

`runtime.secrets` gets the text of `secret:NAME` from the store; this module then only parses it as user:password.
"""

import os
from collections.abc import Mapping

from leasekeeper.core.browsers import Credentials
from leasekeeper.errors import InputError
from leasekeeper.secret_files import OTHERS, read_secret_file


def resolve_credentials(reference: str | None, environ: Mapping[str, str] | None = None) -> Credentials | None:
    """The credentials at `env:NAME` or `file:PATH`; None for no reference. Raises InputError that shows no secret."""
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
    """Parse the text of a reference, `user:password`. Raises InputError that shows no secret."""
    username, colon, password = text.strip("\r\n").partition(":")
    if not colon or not username or not password:
        raise InputError(f"credentials {reference}: what is there is not written as user:password")
    if any(ord(character) < 32 for character in text.strip("\r\n")):
        raise InputError(f"credentials {reference}: must be one line, user:password")
    return Credentials(username=username, password=password)
