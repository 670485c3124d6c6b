"""The token of a server on this machine, for the person who started it: a file that only they may read, found by the
server's address. Written when a server on loopback starts, removed when it stops.
"""

import ipaddress
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from leasekeeper.secret_files import ALL_BUT_OWNER, read_secret_file


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_file(url: str, environ: Mapping[str, str]) -> Path | None:
    """Where the server at this address leaves its token; None if it is elsewhere, or this user has no home."""
    parts = urlsplit(url)
    root = environ.get("XDG_STATE_HOME") or (f"{environ['HOME']}/.local/state" if environ.get("HOME") else "")
    if parts.scheme not in ("http", "https") or not is_loopback(parts.hostname or "") or not root or parts.path != "":
        return None
    return Path(root, "leasekeeper", "servers", f"{parts.port or (443 if parts.scheme == 'https' else 80)}.token")


def read_local_token(url: str, environ: Mapping[str, str]) -> str:
    """The token of the server at this address; empty if there is none. Raises InputError if others can read it."""
    place = token_file(url.rstrip("/"), environ)
    if place is None or not place.exists():
        return ""
    return read_secret_file(str(place), f"the token file {place}", refuse=ALL_BUT_OWNER).strip()


def write_local_token(place: Path, text: str) -> None:
    """Write the token, readable by its owner only; replaces an existing file."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = place.with_name(f"{place.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, f"{text}\n".encode())
    finally:
        os.close(file)
    draft.replace(place)


def remove_local_token(place: Path, text: str) -> None:
    """Remove the token, unless another server has put its own there since."""
    with suppress(OSError):
        if place.read_text().strip() == text:
            place.unlink()
