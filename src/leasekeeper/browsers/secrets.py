"""Credentials by reference: `env:NAME` or `file:PATH` → user and password, at the last moment, never in a message."""

import base64
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leasekeeper.errors import InputError

MOST_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user and a password. Neither shows in a repr."""

    username: str = field(repr=False)
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """Both, as a proxy is told them."""
        return base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


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
        text = _read(place, reference)
    else:
        raise InputError("credentials must be written as env:NAME or file:PATH, never as the secret itself")
    username, colon, password = text.strip("\r\n").partition(":")
    if not colon or not username or not password:
        raise InputError(f"credentials {reference}: what is there is not written as user:password")
    if any(ord(character) < 32 for character in text.strip("\r\n")):
        raise InputError(f"credentials {reference}: must be one line, user:password")
    return Credentials(username=username, password=password)


def _read(place: str, reference: str) -> str:
    try:
        # Not to wait: whoever is to write to a pipe may never come.
        file = os.open(Path(place).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            facts = os.fstat(file)
            if not stat.S_ISREG(facts.st_mode):
                raise InputError(f"credentials {reference}: is not a file")
            if facts.st_mode & (stat.S_IROTH | stat.S_IWOTH):
                raise InputError(f"credentials {reference}: everybody on this machine can read it; chmod 600 it first")
            data = os.read(file, MOST_BYTES + 1)
        finally:
            os.close(file)
    except OSError as error:
        raise InputError(f"credentials {reference}: cannot be read: {error.strerror}") from None
    except RuntimeError:
        raise InputError(f"credentials {reference}: begins with '~', but that home directory is not known") from None
    if len(data) > MOST_BYTES:
        raise InputError(f"credentials {reference}: has more than {MOST_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError(f"credentials {reference}: is not text") from None
