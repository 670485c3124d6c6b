"""Reads evidence from wherever it is: this machine's data directory, a folder, a bucket, or the server."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from leasekeeper.config import BrowserConfig
from leasekeeper.errors import EvidenceRefused, InputError, NotFound
from leasekeeper.evidence.files import Artifact
from leasekeeper.evidence.folder import FolderEvidence
from leasekeeper.evidence.places import SERVER, open_place
from leasekeeper.evidence_port import Evidence


def own_place(config: BrowserConfig) -> Evidence:
    """Where a process with these settings stores evidence: the configured place, or the data directory."""
    return open_place(config) or FolderEvidence(Path(config.data_dir) / "runs")


def place_of(evidence: Mapping[str, object], config: BrowserConfig) -> Evidence:
    """Where the files of a run's record are. Raises EvidenceRefused if these settings name another place."""
    recorded = evidence.get("place")
    if recorded is None:
        return FolderEvidence(Path(config.data_dir) / "runs")
    place = own_place(config)
    if recorded not in (place.location, SERVER):
        raise EvidenceRefused(
            f"the evidence is in {recorded}, and the setting evidence leads to {place.location}: "
            "set LEASEKEEPER_EVIDENCE to the place where it is",
            location=str(recorded),
        )
    return place


def artifacts_of(evidence: Mapping[str, object], names: Sequence[str] = ()) -> list[Artifact]:
    """The files that a record names; with `names`, only those. Raises NotFound for one that it does not name."""
    listed = evidence.get("artifacts")
    found = {each["name"]: Artifact(**each) for each in (listed if isinstance(listed, list) else [])}
    for name in names:
        if name not in found:
            there = ", ".join(found) or "none"
            raise NotFound(f"the run has no evidence {name}; it has: {there}", what="evidence", id=name)
    return [found[name] for name in names] if names else list(found.values())


async def fetch(place: Evidence, run_id: str, artifact: Artifact, folder: Path) -> Path:
    """Copy one file of a run into a folder, and compare it with the record. Never overwrites a file."""
    target = folder / artifact.name
    part = folder / f".{artifact.name}.part"
    size, digest = 0, hashlib.sha256()
    try:
        with part.open("xb") as file:
            async for chunk in place.get(f"{run_id}/{artifact.name}"):
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
        if (size, digest.hexdigest()) != (artifact.size, artifact.sha256):
            text = f"{artifact.name} in {place.location} is not the file that the run left: its hash is another"
            raise EvidenceRefused(text, location=place.location, name=artifact.name)
        if target.exists():
            raise InputError(f"{target} exists already: choose another folder")
        part.rename(target)
    finally:
        part.unlink(missing_ok=True)
    return target
