"""A throwaway copy of a profile, for runs that share it: each has a directory of its own, none writes to the real one.

While runs share a profile no browser writes to its directory. A shared lock keeps a keeper out that would open it
meanwhile.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from leasekeeper.browsers.keeper.fence_file import OWN_FOLDER, lock_directory
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.errors import Fail

# What a browser makes again by itself, or what belongs to the process that has the directory open.
_LEFT_OUT: Final = shutil.ignore_patterns(
    OWN_FOLDER, "Singleton*", "Cache", "Code Cache", "GPUCache", "Dawn*Cache", "Gr*Cache", "ShaderCache", "Crash*",
    "component_crx_cache", "Sessions", "*.tmp",
)  # fmt: skip


def copy_profile(directory: Path, copy: Path) -> None:
    """Copy what a session lives in, without caches. Raises Fail if somebody has the directory open."""
    try:
        lock = lock_directory(str(directory), shared=True)
    except Refused as refused:
        raise Fail(refused.reason, f"{refused.message}, and it cannot be copied meanwhile") from refused
    try:
        shutil.copytree(directory, copy, symlinks=True, ignore=_LEFT_OUT, dirs_exist_ok=True)
    finally:
        os.close(lock)
    copy.chmod(0o700)
