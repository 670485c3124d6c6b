"""A throwaway copy of a profile, for runs that share it: each has a directory of its own, none writes to the real one.

While runs share a profile nobody holds it alone, so its directory is at rest. A shared lock keeps a keeper out that
would open it for good in the meantime.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from leasekeeper.browsers.checkout import OWN_FOLDER
from leasekeeper.errors import Fail

# What a browser makes again by itself, or what belongs to the process that has the directory open.
_LEFT_OUT: Final = shutil.ignore_patterns(
    OWN_FOLDER, "Singleton*", "Cache", "Code Cache", "GPUCache", "Dawn*Cache", "Gr*Cache", "ShaderCache", "Crash*",
    "component_crx_cache", "Sessions", "*.tmp",
)  # fmt: skip


@contextmanager
def _at_rest(directory: Path) -> Iterator[None]:
    own = directory / OWN_FOLDER
    own.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{directory} is open in another browser, and cannot be copied"
            raise Fail("PROFILE_IN_USE_ELSEWHERE", message) from None
        yield
    finally:
        os.close(lock)


def copy_profile(directory: Path, copy: Path) -> None:
    """Copy what a session lives in, without caches. Raises Fail if somebody has the directory open."""
    with _at_rest(directory):
        shutil.copytree(directory, copy, symlinks=True, ignore=_LEFT_OUT, dirs_exist_ok=True)
    copy.chmod(0o700)
