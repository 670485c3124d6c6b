"""Evidence on a disk that is really full."""

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasekeeper.evidence.files import EvidenceFolder, EvidenceNotSaved


@contextmanager
def small_disk(place: Path) -> Iterator[set[int]]:
    """A place where 256 KB fit and no more, and the error numbers it answers with: a small disk, or a limit."""
    place.mkdir()
    if os.geteuid() == 0 and _mount(place):
        try:
            yield {errno.ENOSPC}
        finally:
            subprocess.run(["umount", str(place)], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, before[1]))
    try:
        yield {errno.EFBIG}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _mount(place: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_full_disk_is_said_and_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as numbers:
        folder = EvidenceFolder(tmp_path / "disk", "run_1")
        folder.create()
        kept = folder.write("small", b"x" * 1_000)
        with pytest.raises(EvidenceNotSaved, match="evidence large could not be saved") as raised:
            folder.write("large", b"x" * 1_000_000)
        assert raised.value.errno in numbers
        assert [path.name for path in folder.path.iterdir()] == ["small"]
        assert folder.verify(kept)
        assert folder.write("next", b"x" * 1_000).size == 1_000
