"""Uploads the files of a run to the place where evidence is stored: with retries, until a deadline."""

import asyncio
import errno
from typing import Final

from leasekeeper.core.leases import LeaseRef
from leasekeeper.errors import EvidenceRefused, EvidenceUnavailable, LeasekeeperError
from leasekeeper.evidence.files import Artifact, EvidenceFolder, EvidenceNotSaved
from leasekeeper.evidence_port import Evidence

DELIVER_SECONDS: Final = 60.0
FIRST_RETRY_SECONDS: Final = 0.2
MAX_RETRY_SECONDS: Final = 5.0


class EvidenceNotDelivered(EvidenceNotSaved):
    """A file is on this machine, but could not be uploaded to the place of evidence. The run is not completed."""


async def deliver(
    place: Evidence,
    folder: EvidenceFolder,
    artifact: Artifact,
    under: LeaseRef | None,
    *,
    seconds: float = DELIVER_SECONDS,
) -> None:
    """Upload one file of a run. Raises EvidenceNotDelivered with the last error of the place."""
    said = f"no response within {seconds:g} s"
    try:
        async with asyncio.timeout(seconds):
            delay = FIRST_RETRY_SECONDS
            while True:
                try:
                    return await place.put(
                        f"{folder.run_id}/{artifact.name}",
                        folder.path / artifact.name,
                        size=artifact.size,
                        sha256=artifact.sha256,
                        media_type=artifact.media_type,
                        under=under,
                    )
                except EvidenceRefused:
                    raise
                except EvidenceUnavailable as error:
                    said = error.message
                await asyncio.sleep(delay)
                delay = min(2 * delay, MAX_RETRY_SECONDS)
    except TimeoutError as error:
        raise _failed(artifact, said) from error
    except (LeasekeeperError, OSError) as error:
        raise _failed(artifact, str(error)) from error


def _failed(artifact: Artifact, why: str) -> EvidenceNotDelivered:
    return EvidenceNotDelivered(errno.EREMOTEIO, f"evidence {artifact.name} could not be delivered: {why}")
