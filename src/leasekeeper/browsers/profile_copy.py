"""A throwaway copy of a profile's directory, for a run that must not change the profile.

Each such run has a copy of its own, and none writes to the real directory. While a copy is made, a shared lock keeps a
browser from opening the directory.
"""

import os
import shutil
from pathlib import Path
from typing import Final

from leasekeeper.browsers.keeper.fence_file import OWN_FOLDER, lock_directory
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.errors import Fail

# A browser creates these again by itself, or they belong to the process that has the directory open.
_LEFT_OUT: Final = shutil.ignore_patterns(
    OWN_FOLDER, "Singleton*", "Cache", "Code Cache", "GPUCache", "Dawn*Cache", "Gr*Cache", "ShaderCache", "Crash*",
    "component_crx_cache", "Sessions", "*.tmp",
)  # fmt: skip


def copy_profile(directory: Path, copy: Path) -> None:
    """Copy the files of a session, without caches. Raises Fail if a browser has the directory open."""
    try:
        lock = lock_directory(str(directory), shared=True)
    except Refused as refused:
        raise Fail(refused.reason, f"{refused.message}, and it cannot be copied meanwhile") from refused
    try:
        shutil.copytree(directory, copy, symlinks=True, ignore=_LEFT_OUT, dirs_exist_ok=True)
    finally:
        os.close(lock)
    copy.chmod(0o700)
