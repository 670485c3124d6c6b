"""Files that a run left, for pages: images and recordings are shown, everything else is saved."""

from typing import Final

from starlette.responses import Response

from leasekeeper.core.leases import RunRecord
from leasekeeper.service.pages.visit import Visit
from leasekeeper.service.routes.evidence import download
from leasekeeper.service.routing import Call

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/webp"})
RECORDINGS: Final = frozenset({"video/webm", "video/mp4"})


async def file(visit: Visit) -> Response:
    """One file of a run."""
    run = await visit.get(RunRecord, visit.path["run_id"])
    response = await download(Call(request=visit.request, service=visit.service, token=visit.token, record=run))
    if response.media_type in IMAGES | RECORDINGS:
        response.headers["Content-Disposition"] = "inline"
        response.headers["Cache-Control"] = "private, max-age=3600"
    return response
