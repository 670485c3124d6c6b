"""Evidence over HTTP: a worker uploads under its own live lease, tokens that may read the run download.

The path of a file is made from the lease's record; the caller only gives a name, which is an id. Files are served as
attachments in a sandbox: untrusted pages made them.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from starlette.responses import StreamingResponse

from leasekeeper.core.events import Event, EventType
from leasekeeper.core.ids import ID_RULE, RunId, Token, is_id
from leasekeeper.core.leases import MAX_TOKEN_DIGITS, Lease, LeaseRef, LeaseStatus, RunRecord
from leasekeeper.core.tokens import OPERATIONS, Needs, Scope, denial
from leasekeeper.errors import EvidenceRefused, InputError, LeaseLost, NotAuthenticated, Problem
from leasekeeper.evidence.files import MAX_ARTIFACTS, MAX_BYTES
from leasekeeper.evidence.reading import artifacts_of, own_place, place_of
from leasekeeper.service.routing import Call, Parameter, Route, Subject
from leasekeeper.service.uploads import received
from leasekeeper.wire.kinds import ID, Text

# The files of a lost run's keeper; the lease is over by then.
KEEPER_FILES: Final = frozenset({"last.png"})
_LOST: Final = (LeaseStatus.EXPIRED, LeaseStatus.REVOKED)
# Other types are served as bytes: a browser must not render them as a page.
SAFE_TYPES: Final = frozenset(
    {"image/png", "image/jpeg", "image/webp", "video/webm", "video/mp4", "text/plain", "application/json"}
)
BYTES: Final = "application/octet-stream"
MAX_TYPE: Final = 100
HASH: Final = Text("a SHA-256 as 64 hexadecimal digits", maximum=64, pattern="[0-9a-f]{64}")
_TOKEN: Final = Text("a fencing token", maximum=MAX_TOKEN_DIGITS, pattern="[0-9]+")
_KEY: Final = Text("a routing key", maximum=1_000)
# The lease as the caller states it.
HELD: Final = (
    Parameter("run_id", "the run of the lease", ID),
    Parameter("token", "the fencing token of the lease", _TOKEN),
    Parameter("routing_key", "the routing key of the lease", _KEY),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """A file that the server stored, with the hash that it computed."""

    run_id: str
    name: str
    size: int
    sha256: str


async def upload(call: Call) -> Uploaded:
    """Store one file of a run, if its lease is live and the hash is right."""
    name, lease = _name(call.path["name"]), call.record
    ref = ref_of(call, lease, "sha256")
    check_holder(call, lease)
    await check_live(call, ref, name)
    place = own_place(call.service.config.browsers)
    kept = [entry async for entry in place.entries(ref.run_id)]
    if len(kept) >= MAX_ARTIFACTS:
        raise InputError(f"run {ref.run_id} already has {MAX_ARTIFACTS} evidence files, which is the maximum")
    async with received(call.request, call.service.config.browsers.data_dir, MAX_BYTES) as file:
        if file.sha256 != call.query["sha256"]:
            raise EvidenceRefused(f"evidence {name} did not arrive whole: its hash is another", name=name)
        # A lease that ended while the file was on its way.
        await check_live(call, ref, name)
        media_type = call.request.headers.get("content-type", BYTES)[:MAX_TYPE]
        key = f"{ref.run_id}/{name}"
        await place.put(key, file.path, size=file.size, sha256=file.sha256, media_type=media_type)
    call.status = 201
    return Uploaded(run_id=ref.run_id, name=name, size=file.size, sha256=file.sha256)


async def download(call: Call) -> StreamingResponse:
    """One file that the run's record names."""
    run: RunRecord = call.record
    name = _name(call.path["name"])
    (artifact,) = artifacts_of(run.evidence, [name])
    chunks = place_of(run.evidence, call.service.config.browsers).get(f"{run.run_id}/{name}")
    # A missing file must be a 404, so open it before the answer begins.
    first = await anext(chunks, b"")

    async def content() -> AsyncIterator[bytes]:
        yield first
        async for chunk in chunks:
            yield chunk

    headers = {
        "Content-Disposition": f'attachment; filename="{run.run_id}_{name}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "private, no-store",
        "Content-Length": str(artifact.size),
        "ETag": f'"{artifact.sha256}"',
    }
    media_type = artifact.media_type if artifact.media_type in SAFE_TYPES else BYTES
    return StreamingResponse(content(), headers=headers, media_type=media_type)


def _name(text: str) -> str:
    if not is_id(text):
        raise InputError("the call is not acceptable", [Problem("name", f"must be {ID_RULE}")])
    return text


def ref_of(call: Call, lease: Lease, *more: str) -> LeaseRef:
    """The lease as the caller states it. Raises InputError if a parameter is missing, also one of `more`."""
    missing = [name for name in ("run_id", "token", "routing_key", *more) if name not in call.query]
    if missing:
        raise InputError("the call is not acceptable", [Problem(name, "is needed") for name in missing])
    return LeaseRef(
        lease_id=lease.lease_id,
        profile_id=lease.profile_id,
        run_id=RunId(call.query["run_id"]),
        token=Token(int(call.query["token"])),
        routing_key=call.query["routing_key"],
    )


def check_holder(call: Call, lease: Lease) -> None:
    """A worker may use only its own leases."""
    if call.token is None:
        raise NotAuthenticated("the call has no token")
    denied = denial(call.token, OPERATIONS["settle"], incarnation=lease.incarnation)
    if denied is not None:
        raise denied


async def check_live(call: Call, ref: LeaseRef, name: str, what: str = "evidence") -> None:
    """Raise LeaseLost, and record the late write, unless the lease is live and the token its own.

    A file of a lost run's keeper is accepted late: no other process has it, and its key belongs to that run only.
    """
    lease: Lease = call.record
    if name in KEEPER_FILES and lease.status in _LOST and lease.ref == ref:
        return
    store = call.service.store
    try:
        await store.lease_secrets(ref)
    except LeaseLost as lost:
        await store.record(
            Event(
                at=lease.acquired_at,
                type=EventType.STALE_WORKER_WRITE_REJECTED,
                profile_id=ref.profile_id,
                data={"lease_id": ref.lease_id, "token": ref.token, "write": what, "why": lost.refusal},
            )
        )
        raise


async def about_lease(call: Call) -> Subject:
    lease = await call.service.store.get(Lease, call.path["lease_id"])
    return Subject(account=lease.account_id, pool=lease.pool, record=lease)


async def _about_run(call: Call) -> Subject:
    run = await call.service.store.get(RunRecord, call.path["run_id"])
    return Subject(account=run.account_id, record=run)


ROUTES: Final = (
    Route(
        method="PUT",
        path="/v1/leases/{lease_id}/evidence/{name}",
        summary="Upload one file of a run, before the settle that names it. The body is the file.",
        handler=upload,
        needs=Needs(Scope.WORK),
        about=about_lease,
        parameters=(*HELD, Parameter("sha256", "the hash of the file", HASH)),
        answers=Uploaded,
        status=201,
        tag="evidence",
    ),
    Route(
        method="GET",
        path="/v1/runs/{run_id}/evidence/{name}",
        summary="Download one file that a run left, as an attachment.",
        handler=download,
        needs=Needs(Scope.READ),
        about=_about_run,
        media=BYTES,
        tag="evidence",
    ),
)
