"""Snapshots over HTTP: a worker uploads and downloads those of a profile that it has leased, under its live lease.

The path of an object is made from the lease's record; the caller gives its name, which begins with the lease's token.
Objects are encrypted before the upload; the server needs no key, and never reads their content.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from starlette.responses import StreamingResponse

from leasekeeper.core.leases import Lease, LeaseRef
from leasekeeper.core.tokens import Needs, Scope
from leasekeeper.errors import EvidenceRefused, InputError, Problem
from leasekeeper.service.routes.evidence import (
    BYTES,
    HASH,
    HELD,
    about_lease,
    check_holder,
    check_live,
    ref_of,
)
from leasekeeper.service.routing import Call, Parameter, Route
from leasekeeper.service.uploads import received
from leasekeeper.snapshots.packing import Packed
from leasekeeper.snapshots.profile_store import KEY, own_profile_store

MAX_PACKED: Final = 4 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """An object that the server has stored and read back, with the hash that it computed."""

    place: str
    size: int
    sha256: str


async def upload(call: Call) -> StoredSnapshot:
    """Store one snapshot of the lease's profile, if the lease is live, the name begins with its token and the hash is
    right.
    """
    lease: Lease = call.record
    ref, key = await _held(call, "sha256"), _key(call)
    if int(call.path["name"].partition("-")[0]) != lease.token:
        raise EvidenceRefused(f"snapshot {key} is not named by the token of the lease, {lease.token}", name=key)
    store = own_profile_store(call.service.config.browsers)
    async with received(call.request, call.service.config.browsers.data_dir, MAX_PACKED) as file:
        if file.sha256 != call.query["sha256"]:
            raise EvidenceRefused(f"snapshot {key} did not arrive whole: its hash is another", name=key)
        # A lease that ended while the object was on its way.
        await check_live(call, ref, "", "snapshot")
        packed = Packed(size=file.size, sha256=file.sha256, unpacked=0, key_id=None)
        await store.upload(file.path, key, packed, under=None)
    call.status = 201
    return StoredSnapshot(place=key, size=file.size, sha256=file.sha256)


async def download(call: Call) -> StreamingResponse:
    """One snapshot of the lease's profile."""
    await _held(call)
    chunks = own_profile_store(call.service.config.browsers).read(_key(call))
    # A missing object must be a 404, so open it before the answer begins.
    first = await anext(chunks, b"")

    async def content() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    return StreamingResponse(content(), headers={"Cache-Control": "private, no-store"}, media_type=BYTES)


async def _held(call: Call, *more: str) -> LeaseRef:
    """The caller's live lease. Otherwise raises LeaseLost and records the late write."""
    ref = ref_of(call, call.record, *more)
    check_holder(call, call.record)
    await check_live(call, ref, "", "snapshot")
    return ref


def _key(call: Call) -> str:
    key = f"{call.record.profile_id}/{call.path['name']}"
    if KEY.fullmatch(key) is None:
        allowed = "must be 16 digits of a token, - and 32 hexadecimal digits of a hash"
        raise InputError("the call is not acceptable", [Problem("name", allowed)])
    return key


ROUTES: Final = (
    Route(
        method="PUT",
        path="/v1/leases/{lease_id}/snapshots/{name}",
        summary="Upload a snapshot of the lease's profile, before the settle that names it. The body is the object.",
        handler=upload,
        needs=Needs(Scope.WORK),
        about=about_lease,
        parameters=(*HELD, Parameter("sha256", "the hash of the object", HASH)),
        answers=StoredSnapshot,
        status=201,
        tag="snapshots",
    ),
    Route(
        method="GET",
        path="/v1/leases/{lease_id}/snapshots/{name}",
        summary="Download a snapshot of the lease's profile.",
        handler=download,
        needs=Needs(Scope.WORK),
        about=about_lease,
        parameters=HELD,
        media=BYTES,
        tag="snapshots",
    ),
)
