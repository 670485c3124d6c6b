"""The profile store: where packed snapshots are stored, by the setting `profile_store` or the fleet's.

It uses the interface of evidence (`evidence_port`): a bucket, a folder, or the server. An object's key is made of the
profile, the token that it was uploaded under and its own hash: so no upload overwrites another, and the same upload
again is the same object. Objects are encrypted before they leave the machine, unless a setting allows plain ones.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

from leasekeeper.config import BrowserConfig
from leasekeeper.core.leases import LeaseRef
from leasekeeper.encryption import Keyring, read_keyring
from leasekeeper.errors import EvidenceRefused, EvidenceUnavailable, InputError, NotFound, Problem, SecretKeyMissing
from leasekeeper.evidence.places import S3, SERVER, folder_of, open_bucket
from leasekeeper.evidence.redact import Redactor
from leasekeeper.evidence_port import Evidence, Stored
from leasekeeper.snapshots.packing import Packed, SnapshotDamaged
from leasekeeper.threads import run_in_thread

SETTING: Final = "profile_store"
MEDIA_TYPE: Final = "application/octet-stream"
UPLOAD_SECONDS: Final = 900.0
DOWNLOAD_SECONDS: Final = 900.0
REQUEST_SECONDS: Final = 300.0
FIRST_RETRY_SECONDS: Final = 0.2
MAX_RETRY_SECONDS: Final = 5.0
_HASH_LENGTH: Final = 32
# A profile's name, then sixteen digits of a token and the beginning of the object's hash.
KEY: Final = re.compile(rf"(?P<profile>[^/]+)/(?P<token>\d{{16}})-[0-9a-f]{{{_HASH_LENGTH}}}")

OnBytes = Callable[[int], None]


def key_of(profile_id: str, token: int, sha256: str) -> str:
    """The name of an object: unique for each token and content."""
    return f"{profile_id}/{token:016d}-{sha256[:_HASH_LENGTH]}"


class ProfileStore:
    """A place of snapshots, with their keys. `keyring` None: they are not encrypted."""

    def __init__(self, place: Evidence, keyring: Keyring | None) -> None:
        self._place = place
        self.keyring = keyring

    @property
    def location(self) -> str:
        """Where it is, for people: without credentials."""
        return self._place.location

    @property
    def lists(self) -> bool:
        """Whether its objects can be listed and deleted from here. Otherwise the place deletes them itself."""
        return self._place.prunes

    async def check(self) -> None:
        """Test with a small object what an upload needs. Raises EvidenceUnavailable."""
        await self._place.check()

    async def upload(self, source: Path, key: str, packed: Packed, *, under: LeaseRef | None) -> None:
        """Store an object under a new key, and read it back. Retries until a deadline.

        Raises EvidenceUnavailable, EvidenceRefused or LeaseLost; then no record may name the object.
        """
        await self._retrying(lambda: self._put(source, key, packed, under), UPLOAD_SECONDS)

    async def _put(self, source: Path, key: str, packed: Packed, under: LeaseRef | None) -> None:
        await self._place.put(key, source, size=packed.size, sha256=packed.sha256, media_type=MEDIA_TYPE, under=under)
        if not self._place.prunes:
            return  # a server has read it back before it answered
        size, digest = 0, hashlib.sha256()
        async for chunk in self._place.get(key, under=under):
            size += len(chunk)
            digest.update(chunk)
        if (size, digest.hexdigest()) != (packed.size, packed.sha256):
            raise EvidenceRefused(
                f"{self.location}: snapshot {key} is not what was uploaded: its hash is another",
                location=self.location,
                name=key,
            )

    async def download(
        self, key: str, target: Path, *, size: int, sha256: str, under: LeaseRef | None, on_bytes: OnBytes
    ) -> None:
        """Write an object to `target`, a new file. Raises SnapshotDamaged if it is not the one that was uploaded,
        NotFound, EvidenceUnavailable."""
        await self._retrying(lambda: self._get(key, target, size, sha256, under, on_bytes), DOWNLOAD_SECONDS)

    async def _get(
        self, key: str, target: Path, size: int, sha256: str, under: LeaseRef | None, on_bytes: OnBytes
    ) -> None:
        found, digest = 0, hashlib.sha256()
        file = await run_in_thread(_create, target)
        with file:
            async for chunk in self._place.get(key, under=under):
                found += len(chunk)
                if found > size:
                    break
                digest.update(chunk)
                on_bytes(len(chunk))
                await run_in_thread(file.write, chunk)
        if (found, digest.hexdigest()) != (size, sha256):
            raise SnapshotDamaged(f"{self.location}: snapshot {key} is not what was uploaded: its hash is another")

    async def read(self, key: str) -> AsyncIterator[bytes]:
        """The content of an object, for a server that passes it on."""
        async for chunk in self._place.get(key):
            yield chunk

    async def entries(self, profile_id: str = "") -> AsyncIterator[Stored]:
        """Every object, or those of one profile."""
        async for entry in self._place.entries(profile_id):
            yield entry

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. A missing object is no error."""
        await self._place.delete(keys)

    async def delete_parts(self, before: datetime) -> int:
        """Delete the parts of interrupted uploads in a folder. Returns how many. A bucket has no such parts."""
        from leasekeeper.snapshots.folder import FolderSnapshots

        return await self._place.delete_parts(before) if isinstance(self._place, FolderSnapshots) else 0

    async def _retrying(self, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Retry temporary failures until the deadline."""
        said: EvidenceUnavailable | None = None
        try:
            async with asyncio.timeout(seconds):
                delay = FIRST_RETRY_SECONDS
                while True:
                    try:
                        return await work()
                    except (EvidenceRefused, NotFound):
                        raise
                    except EvidenceUnavailable as error:
                        said = error
                    await asyncio.sleep(delay)
                    delay = min(2 * delay, MAX_RETRY_SECONDS)
        except TimeoutError as error:
            raise said or EvidenceUnavailable(
                f"{self.location}: no response within {seconds:g} s", location=self.location, name=""
            ) from error


def _create(path: Path) -> BinaryIO:
    """A new file, open to its owner only."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return os.fdopen(handle, "wb")


def open_profile_store(text: str, config: BrowserConfig, redactor: Redactor | None = None) -> ProfileStore:
    """The profile store that a setting or the fleet names. Its credentials are added to `redactor`.

    Raises InputError for an invalid place, SecretKeyMissing without a key unless the settings allow that.
    """
    return ProfileStore(_open(text, config, redactor), keyring_of(config))


def keyring_of(config: BrowserConfig) -> Keyring | None:
    """The keys of snapshots; None if there is none, and the settings allow that."""
    try:
        return read_keyring(config.secrets)
    except SecretKeyMissing:
        if config.unencrypted_snapshots:
            return None
        raise SecretKeyMissing(
            "snapshots are encrypted, and no key is set here: set LEASEKEEPER_SECRET_KEY or "
            "LEASEKEEPER_SECRET_KEY_FILE to the same key on every machine, or "
            "allow plain ones with LEASEKEEPER_UNENCRYPTED_SNAPSHOTS=1"
        ) from None


def own_profile_store(config: BrowserConfig) -> ProfileStore:
    """Where a server stores the uploads of its workers: its own setting, or its data directory. It needs no key."""
    text = config.profile_store
    if text in ("", SERVER):
        text = str(Path(config.data_dir).absolute() / "snapshots")
    return ProfileStore(_open(text, config, None), None)


def store_without_keys(text: str, config: BrowserConfig) -> ProfileStore:
    """A profile store for listing, deleting and checking only: without keys its objects cannot be decrypted."""
    return ProfileStore(_open(text, config, None), None)


def _open(text: str, config: BrowserConfig, redactor: Redactor | None) -> Evidence:
    if text == SERVER:
        return _server(config, redactor)
    if text.startswith(S3):
        from leasekeeper.evidence.s3 import S3Evidence

        return S3Evidence(open_bucket(text, SETTING, redactor), of="snapshots", request_seconds=REQUEST_SECONDS)
    from leasekeeper.snapshots.folder import FolderSnapshots

    return FolderSnapshots(folder_of(text, SETTING), of="snapshots")


def _server(config: BrowserConfig, redactor: Redactor | None) -> Evidence:
    if config.server is None:
        said = "can be server only where the store is a server's URL: name a bucket or a folder"
        raise InputError("the setting profile_store cannot be used", [Problem(SETTING, said)])
    from leasekeeper.evidence.server import ServerSnapshots

    if redactor is not None:
        redactor.add(config.token)
    return ServerSnapshots(config.server, config.token, config.server_ca)
