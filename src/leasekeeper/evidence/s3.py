"""Evidence, and snapshots, in an S3-compatible bucket, by obstore.

Credentials come from the environment and are shown nowhere.

`s3://BUCKET/PREFIX?endpoint=URL&region=NAME`; `access_key=env:NAME`, `secret_key=env:NAME` and `session_token=env:NAME`
name other variables than AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN. Without any of them the roles
of the machine or container are used.
"""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256 as hash_of
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

from leasekeeper.core.leases import LeaseRef
from leasekeeper.errors import EvidenceRefused, EvidenceUnavailable, InputError, NotFound, Problem
from leasekeeper.evidence.redact import Redactor
from leasekeeper.evidence_port import Stored, key_parts
from leasekeeper.threads import run_in_thread

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

REQUEST_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 5.0
MAX_ERROR: Final = 300
# Larger files are not read into memory, but uploaded in parts.
MAX_SINGLE_BYTES: Final = 64 * 1024 * 1024
PART_BYTES: Final = 8 * 1024 * 1024
PROBE: Final = ".probe"
# The bucket's error message, in its XML.
_ANSWER = re.compile(r"<Code>([^<]+)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)
_METADATA = "169.254.169.254"  # where a cloud machine gets the credentials of its role, if there are no others
_STATUS = re.compile(r"status code: (\d{3})")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._/-]*")
_REFERENCE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")
# The options of a URL for credentials, and their default variables.
_CREDENTIALS: Final = {
    "access_key": ("access_key_id", "AWS_ACCESS_KEY_ID"),
    "secret_key": ("secret_access_key", "AWS_SECRET_ACCESS_KEY"),
    "session_token": ("session_token", "AWS_SESSION_TOKEN"),
}
_OPTIONS: Final = ("endpoint", "region", *_CREDENTIALS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A parsed `s3://…`, with the credentials that it refers to."""

    name: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def location(self) -> str:
        return f"s3://{self.name}/{self.prefix}".rstrip("/")


def parse_bucket(url: str, environ: Mapping[str, str], setting: str = "evidence") -> Bucket:
    """Parse `s3://…`. Raises InputError; the message repeats nothing that may be a credential."""
    parts, problems = urlsplit(url), []
    options = dict(parse_qsl(parts.query))
    if parts.username is not None or parts.password is not None:
        problems.append(
            "must have no user or password: name variables with access_key=env:NAME and secret_key=env:NAME"
        )
    elif _BUCKET.fullmatch(parts.netloc) is None:
        problems.append("must name a bucket: s3://BUCKET/PREFIX")
    if _PREFIX.fullmatch(parts.path) is None or ".." in parts.path:
        problems.append("its prefix may have letters, digits, '.', '_', '-' and '/'")
    unknown = sorted(options.keys() - set(_OPTIONS))
    if unknown:
        problems.append(f"has no option {', '.join(unknown)}; there are: {', '.join(_OPTIONS)}")
    endpoint = options.get("endpoint")
    if endpoint is not None and not _is_endpoint(endpoint):
        problems.append("its endpoint must be a URL: endpoint=https://HOST")
    credentials = {}
    for option, (name, usual) in _CREDENTIALS.items():
        reference = _REFERENCE.fullmatch(options.get(option, f"env:{usual}"))
        if reference is None:
            problems.append(f"its {option} must name a variable of the environment: {option}=env:NAME")
        elif value := environ.get(reference[1]):
            credentials[name] = value
        elif option in options:
            problems.append(f"its {option} names the variable {reference[1]}, which is not set")
    if ("access_key_id" in credentials) != ("secret_access_key" in credentials):
        problems.append("its access key and secret key must both be set in the environment, or none of them")
    if problems:
        raise InputError(f"the setting {setting} cannot be used", [Problem(setting, text) for text in problems])
    return Bucket(
        name=parts.netloc,
        prefix=parts.path.strip("/"),
        endpoint=endpoint,
        region=options.get("region"),
        credentials=credentials,
    )


def _is_endpoint(text: str) -> bool:
    parts = urlsplit(text)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and not parts.query


class S3Evidence:
    """A bucket as a place of evidence."""

    prunes = True

    def __init__(self, bucket: Bucket, *, of: str = "evidence", request_seconds: float = REQUEST_SECONDS) -> None:
        self.location = bucket.location
        self._of = of
        self._store = _connect(bucket, request_seconds)
        self._redactor = Redactor(bucket.credentials.values())

    async def check(self) -> None:
        probe = f"{PROBE}-{uuid4().hex}"
        with self._saying(probe):
            await self._store.put_async(probe, b"\0", mode="create")
            await self._store.delete_async(probe)

    async def put(
        self,
        key: str,
        source: Path,
        *,
        size: int,
        sha256: str,
        media_type: str,
        under: LeaseRef | None = None,  # noqa: ARG002 - buckets know no leases
    ) -> None:
        from obstore.exceptions import AlreadyExistsError

        key_parts(key)
        try:
            with self._saying(key):
                if size > MAX_SINGLE_BYTES:
                    await self._put_in_parts(key, source, media_type)
                else:
                    data = await run_in_thread(source.read_bytes)
                    if (len(data), hash_of(data).hexdigest()) != (size, sha256):
                        raise self._refused(key, "the file has changed since its hash was taken")
                    # The bucket checks the content against its hash, and accepts it only if the key is new.
                    await self._store.put_async(key, data, mode="create", attributes={"Content-Type": media_type})
                stored = await self._store.head_async(key)
        except AlreadyExistsError as error:
            if await self._hash(key) != sha256:
                raise self._refused(key, "the bucket has another object of that name") from error
            return
        if stored["size"] != size:
            raise self._refused(key, f"the bucket has {stored['size']} bytes of {size}")

    async def _put_in_parts(self, key: str, source: Path, media_type: str) -> None:
        """A large file, streamed. S3 has no condition for uploads in parts here: so ask first, which is no guarantee
        beside another writer. Keys of large files must say what is in them (see `snapshots.profile_store`)."""
        from obstore.exceptions import AlreadyExistsError

        try:
            await self._store.head_async(key)
        except FileNotFoundError:
            attributes = {"Content-Type": media_type}
            await self._store.put_async(key, source, attributes=attributes, chunk_size=PART_BYTES, max_concurrency=2)
        else:
            raise AlreadyExistsError(key)

    async def get(self, key: str, *, under: LeaseRef | None = None) -> AsyncIterator[bytes]:  # noqa: ARG002 - as above
        key_parts(key)
        try:
            with self._saying(key):
                async for chunk in (await self._store.get_async(key)).stream():
                    yield bytes(chunk)
        except FileNotFoundError as error:
            raise NotFound(f"there is no {self._of} {key} in {self.location}", what=self._of, id=key) from error

    async def entries(self, prefix: str = "") -> AsyncIterator[Stored]:
        with self._saying(prefix):
            async for batch in self._store.list(prefix or None):
                for meta in batch:
                    yield Stored(key=meta["path"], size=meta["size"], changed_at=meta["last_modified"])

    async def delete(self, keys: Sequence[str]) -> None:
        with self._saying(""):
            if keys:
                await self._store.delete_async([key for key in keys if key_parts(key)])

    async def _hash(self, key: str) -> str:
        digest = hash_of()
        async for chunk in self.get(key):
            digest.update(chunk)
        return digest.hexdigest()

    def _refused(self, key: str, why: str) -> EvidenceRefused:
        return EvidenceRefused(f"{self.location}: {key}: {why}", location=self.location, name=key)

    @contextmanager
    def _saying(self, key: str) -> Iterator[None]:
        """Convert errors of the library to ours: the bucket's message, without the library's own details."""
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            yield
        except AlreadyExistsError:
            raise
        except (BaseError, FileNotFoundError) as error:
            text = str(error)
            answer, status = _ANSWER.search(text), _STATUS.search(text)
            if answer is not None and answer[1] == "NoSuchKey":
                raise
            said = f"{answer[1]}: {answer[2] or ''}" if answer else text.partition("\n")[0]
            if _METADATA in text:
                said = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
            message = f"{self.location} cannot be used for {self._of}: {self._redactor.short(said, MAX_ERROR)}"
            refused = status is not None and status[1].startswith("4") and status[1] not in ("408", "429")
            kind = EvidenceRefused if refused else EvidenceUnavailable
            raise kind(message, location=self.location, name=key) from None


def _connect(bucket: Bucket, request_seconds: float) -> "S3Store":
    try:
        from obstore.store import S3Store
    except ImportError as error:
        raise InputError(
            "a bucket needs obstore: install leasekeeper with the extra s3",
            [Problem("s3://", "install the extra leasekeeper[s3]")],
        ) from error
    config: S3Config = {"checksum_algorithm": "SHA256"}
    if bucket.endpoint is not None:
        config["endpoint"] = bucket.endpoint
    if bucket.region is not None:
        config["region"] = bucket.region
    config.update(cast("S3Config", bucket.credentials))
    return S3Store(
        bucket.name,
        prefix=bucket.prefix or None,
        config=config,
        client_options={
            "allow_http": bucket.endpoint is not None and bucket.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "timeout": timedelta(seconds=request_seconds),
        },
        # The caller retries, until a deadline of its own.
        retry_config={"max_retries": 1},
    )
