"""Evidence that is kept by the server: uploaded under a live lease, readable with tokens that may read the run.

Each file is one PUT that carries the lease and its fencing token; the server compares the hash before it answers. The
server deletes old files.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

import httpx2

from leasekeeper.core.leases import LeaseRef
from leasekeeper.errors import EvidenceRefused, EvidenceUnavailable, LeasekeeperError, LeaseLost, NotFound, StoreError
from leasekeeper.evidence.places import SERVER
from leasekeeper.evidence_port import Stored, key_parts
from leasekeeper.server_trust import authorization, trusted
from leasekeeper.threads import run_in_thread
from leasekeeper.wire import error_from_json

LOCATION: Final = SERVER
REQUEST_SECONDS: Final = 30.0
# Timeout without any data: the server answers an upload after it has stored it and read it back.
SNAPSHOT_SECONDS: Final = 120.0
CHUNK: Final = 1024 * 1024
_AWAY: Final = frozenset({429, 502, 503, 504})


class ServerEvidence:
    """The server as a place of evidence."""

    location = LOCATION
    prunes = False

    def __init__(self, url: str, token: str, ca: str = "") -> None:
        self._url = url.rstrip("/")
        self._verify = trusted(self._url, ca)
        self._headers = authorization(token)

    async def check(self) -> None:
        async with self._client() as client:
            self._expect(await self._ask(client.get(f"{self._url}/readyz"), ""), "")

    async def put(
        self, key: str, source: Path, *, size: int, sha256: str, media_type: str, under: LeaseRef | None = None
    ) -> None:
        name = key_parts(key)[-1]
        if under is None:
            raise EvidenceRefused("the server accepts evidence only under a lease", location=LOCATION, name=key)
        data = await run_in_thread(source.read_bytes)
        if len(data) != size:
            raise EvidenceRefused(f"evidence {name} has changed since its hash was taken", location=LOCATION, name=key)
        path = f"/v1/leases/{quote(under.lease_id, safe='')}/evidence/{quote(name, safe='')}"
        headers = {"Content-Type": media_type}
        async with self._client() as client:
            put = client.put(f"{self._url}{path}", params=_claims(under, sha256), content=data, headers=headers)
            self._expect(await self._ask(put, key), key)

    async def get(self, key: str, *, under: LeaseRef | None = None) -> AsyncIterator[bytes]:  # noqa: ARG002 - see the port
        run_id, name = (quote(part, safe="") for part in key_parts(key))
        async for chunk in self._stream(f"/v1/runs/{run_id}/evidence/{name}", {}, key):
            yield chunk

    async def _stream(self, path: str, asked: Mapping[str, str], key: str) -> AsyncIterator[bytes]:
        async with self._client() as client:
            try:
                async with client.stream("GET", f"{self._url}{path}", params=dict(asked)) as answer:
                    if answer.status_code != 200:
                        await answer.aread()
                        self._expect(answer, key)
                    async for chunk in answer.aiter_bytes():
                        yield chunk
            except httpx2.TransportError as error:
                raise self._away(error, key) from error

    async def entries(self, prefix: str = "") -> AsyncIterator[Stored]:
        raise self._not_ours(prefix)
        yield  # makes it a generator, as the port has it

    async def delete(self, keys: Sequence[str]) -> None:
        raise self._not_ours(keys[0] if keys else "")

    def _not_ours(self, name: str) -> EvidenceRefused:
        return EvidenceRefused("the server lists and deletes its evidence itself", location=LOCATION, name=name)

    def _client(self, seconds: float = REQUEST_SECONDS) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(headers=self._headers, timeout=seconds, verify=self._verify)

    async def _ask(self, asking: Awaitable[httpx2.Response], key: str) -> httpx2.Response:
        try:
            return await asking
        except httpx2.TransportError as error:
            raise self._away(error, key) from error

    def _away(self, error: Exception, key: str) -> EvidenceUnavailable:
        text = f"no response from {self._url}: {type(error).__name__} {error}".rstrip()
        return EvidenceUnavailable(text, location=LOCATION, name=key)

    def _expect(self, answer: httpx2.Response, key: str) -> None:
        """Raise the error of an unsuccessful answer."""
        if answer.is_success:
            return
        said: LeasekeeperError = StoreError(f"{self._url} answers with HTTP {answer.status_code}")
        try:
            problem = json.loads(answer.content)
            if isinstance(problem, dict) and isinstance(problem.get("code"), str):
                said = error_from_json({**problem, "message": problem.get("detail", "")})
        except (ValueError, LeasekeeperError):
            pass
        if isinstance(said, LeaseLost | NotFound):
            raise said
        kind = EvidenceUnavailable if answer.status_code in _AWAY else EvidenceRefused
        raise kind(said.message, location=LOCATION, name=key)


class ServerSnapshots(ServerEvidence):
    """The server as a place of snapshots: uploads and downloads need a live lease of the profile, and are streamed."""

    async def put(
        self,
        key: str,
        source: Path,
        *,
        size: int,
        sha256: str,
        media_type: str,  # noqa: ARG002 - the server knows what it is
        under: LeaseRef | None = None,
    ) -> None:
        ref = self._held(under, key)
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        async with self._client(SNAPSHOT_SECONDS) as client:
            put = client.put(
                f"{self._url}{_snapshot_path(ref, key)}",
                params=_claims(ref, sha256),
                content=_read(source),
                headers=headers,
            )
            self._expect(await self._ask(put, key), key)

    async def get(self, key: str, *, under: LeaseRef | None = None) -> AsyncIterator[bytes]:
        ref = self._held(under, key)
        async for chunk in self._stream(_snapshot_path(ref, key), _claims(ref), key):
            yield chunk

    def _held(self, under: LeaseRef | None, key: str) -> LeaseRef:
        if under is None:
            raise EvidenceRefused(
                "the server gives and takes snapshots only under a lease", location=LOCATION, name=key
            )
        return under


def _snapshot_path(ref: LeaseRef, key: str) -> str:
    return f"/v1/leases/{quote(ref.lease_id, safe='')}/snapshots/{quote(key_parts(key)[-1], safe='')}"


def _claims(ref: LeaseRef, sha256: str | None = None) -> dict[str, str]:
    """The lease, as query parameters."""
    held = {"run_id": ref.run_id, "token": str(ref.token), "routing_key": ref.routing_key}
    return held if sha256 is None else {**held, "sha256": sha256}


async def _read(path: Path) -> AsyncIterator[bytes]:
    file: BinaryIO = await run_in_thread(lambda: path.open("rb"))
    with file:
        while chunk := await run_in_thread(file.read, CHUNK):
            yield chunk
