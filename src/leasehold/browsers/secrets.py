"""Credentials by reference: `env:NAME` or `file:PATH` → user and password, at the last moment, never in a message."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leasehold.errors import InputError

MOST_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A user and a password. Neither shows in a repr."""

    username: str = field(repr=False)
    password: str = field(repr=False)


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
        text = _read(Path(place).expanduser(), reference)
    else:
        raise InputError("credentials must be written as env:NAME or file:PATH, never as the secret itself")
    username, colon, password = text.strip("\r\n").partition(":")
    if not colon or not username or not password:
        raise InputError(f"credentials {reference}: what is there is not written as user:password")
    if any(ord(character) < 32 for character in text.strip("\r\n")):
        raise InputError(f"credentials {reference}: must be one line, user:password")
    return Credentials(username=username, password=password)


def _read(path: Path, reference: str) -> str:
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise InputError(f"credentials {reference}: is not a file")
            if facts.st_mode & (stat.S_IROTH | stat.S_IWOTH):
                raise InputError(f"credentials {reference}: everybody on this machine can read it; chmod 600 it first")
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"credentials {reference}: cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise InputError(f"credentials {reference}: has more than {MOST_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError(f"credentials {reference}: is not text") from None
