"""Stored secrets: names for values that the store keeps only encrypted. Pure; knows nothing of keys or ciphers.

A configuration names a secret as `secret:NAME`, wherever it may say `env:NAME` or `file:PATH`; a job's payload names
one as `secret:job-NAME`. The plain value exists only where it is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from leasekeeper.core.ids import ID_RULE, is_id
from leasekeeper.errors import InputError, Problem

REFERENCE: Final = "secret:"
# Payloads may name only these: whoever may submit a job must not get a proxy's login or a signing key.
JOB_PREFIX: Final = "job-"
MAX_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A stored secret as lists show it: without its value, encrypted or not. `key_id` is the key that opens it."""

    name: str
    key_id: str
    version: int = 1
    created_at: datetime
    updated_at: datetime
    updated_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSecret:
    """A secret as the store keeps it: base64 of nonce and ciphertext, bound to its name. `version` counts values."""

    name: str
    key_id: str
    sealed: str = field(repr=False)
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSecret:
    """A secret as a lease's holder gets it: sealed if the holder has the key itself, else its plain value."""

    name: str
    sealed: SealedSecret | None = None
    value: str | None = field(default=None, repr=False)


def secret_name(reference: str | None) -> str | None:
    """The name in `secret:NAME`; None for any other reference."""
    return reference.removeprefix(REFERENCE) if reference is not None and reference.startswith(REFERENCE) else None


def payload_secrets(payload: Mapping[str, object]) -> set[str]:
    """The names of the secrets that a job's payload refers to, in values at any depth."""
    found: set[str] = set()
    left: list[object] = [payload]
    while left:
        match left.pop():
            case str(text) if (secret_name(text) or "").startswith(JOB_PREFIX):
                found.add(text.removeprefix(REFERENCE))
            case Mapping() as fields:
                left += fields.values()
            case list() | tuple() as items:
                left += items
    return found


def check_name(name: str) -> None:
    """Raise InputError unless a secret may have this name."""
    if not is_id(name):
        raise InputError("the name of the secret is not valid", [Problem("name", f"must be {ID_RULE}")])


def check_value(value: str) -> None:
    """Raise InputError if a value cannot be kept. The message does not show it."""
    problem = None
    if not value:
        problem = "must not be empty"
    elif len(value.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        problem = f"must have at most {MAX_BYTES:,} bytes"
    elif any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in value):
        problem = "must be one line of text"
    if problem:
        raise InputError("the secret was not stored", [Problem("value", problem)])
