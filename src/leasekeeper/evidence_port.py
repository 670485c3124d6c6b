"""The interface between runs and the place where their files are stored: a folder, a bucket, or the server.

A run first writes its files to a folder of its own machine. Each is then uploaded to the place, if one is set, before
the commit that names it. Snapshots of profiles are stored through the same interface (`snapshots.profile_store`).
Guarantees that hold for each operation, in every place:

- Keys are names separated by `/`, each a valid id: `RUN_ID/final.png`. No caller chooses a path.
- An object is there whole or not at all, and never changes: `put` creates, it does not replace.
- When `put` returns, the object can be read by others, and what is stored has the size and the hash that were given.
- Nothing that is raised or shown contains a credential.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from leasekeeper.core.ids import ID_RULE, is_id
from leasekeeper.core.leases import LeaseRef
from leasekeeper.errors import InputError

MAX_KEY_PARTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One object of a place, as a list shows it."""

    key: str
    size: int
    changed_at: datetime


class Evidence(Protocol):
    """A place for artifacts. Implementations: a folder, an S3-compatible bucket, the server."""

    @property
    def location(self) -> str:
        """Where it is, for records and people: without credentials."""
        ...

    @property
    def prunes(self) -> bool:
        """Whether Leasekeeper deletes old objects there. False: the place does that itself."""
        ...

    async def check(self) -> None:
        """Test with a small object what a delivery needs. Raises EvidenceUnavailable."""
        ...

    async def put(
        self, key: str, source: Path, *, size: int, sha256: str, media_type: str, under: LeaseRef | None = None
    ) -> None:
        """Store a file as a new object. Idempotent: the same content under the same key again changes nothing.

        `under` is the lease that the file was made under; the server accepts it only while that lease is live.
        Raises EvidenceUnavailable (a retry may help), EvidenceRefused (it will not, also if the key has another
        content), or LeaseLost.
        """
        ...

    def get(self, key: str, *, under: LeaseRef | None = None) -> AsyncIterator[bytes]:
        """The content of an object, in chunks. Raises NotFound, EvidenceUnavailable.

        `under`: the server gives snapshots of a profile only to the holder of its live lease.
        """
        ...

    def entries(self, prefix: str = "") -> AsyncIterator[Stored]:
        """Every object whose key begins with the parts of `prefix`, in no particular order."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. A missing object is no error."""
        ...


def key_parts(key: str) -> list[str]:
    """The names of a key. Raises InputError for a key that could lead out of the place."""
    parts = key.split("/")
    if not 2 <= len(parts) <= MAX_KEY_PARTS or not all(is_id(part) for part in parts):
        raise InputError(f"{key!r} cannot name evidence: it must be names separated by /, and {ID_RULE}")
    return parts
