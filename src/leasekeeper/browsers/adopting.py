"""Adopts existing profiles: finds and checks directories that were used before Leasekeeper, and seals them as they are.

Once a directory is sealed, its first run does not count as manual use, and every later change outside a lease is
noticed. A directory is adopted only if nobody has it open, this user owns it, and no other profile uses it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leasekeeper.browsers.keeper.fence_file import lock_directory
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.browsers.keeper.seal import seal_directory
from leasekeeper.browsers.profile_directory import (
    claim_directory,
    directory_of,
    inspect,
    last_engine,
    never_opened,
    real_directory,
)
from leasekeeper.core.failures import Reason
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import Fail

# The worker checks the browser's version later.
_ANY_ENGINE: Final = 1_000_000
# This file lies in a single Chromium profile. A user data directory has such profiles in folders.
_INNER: Final = "Preferences"


class NotAdopted(Exception):
    """The directory must not be adopted. The message says why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedDirectory:
    """A profile's directory that was used before Leasekeeper. `refused` says why it must not be adopted; else empty."""

    profile: Profile
    directory: Path
    engine: int | None = None
    refused: str = ""


def find_used(profiles: Iterable[Profile], others: Iterable[Profile], data_dir: Path) -> list[UsedDirectory]:
    """The directories of `profiles` that were used, but not by Leasekeeper, and not adopted yet. Changes nothing.

    `others` are all profiles that may have a directory on this machine.
    """
    found = [used for profile in profiles if (used := _find_one(profile, data_dir)) is not None]
    if not found:
        return []
    owners = _owners(others, data_dir)
    return [_checked(used, owners) for used in found]


@contextmanager
def adopting(used: UsedDirectory) -> Iterator[None]:
    """Lock the directory and check it again. Seals it when the block ends without an exception. Raises NotAdopted."""
    try:
        _refuse(real_directory(used.directory))  # before anything in it is touched
        directory = claim_directory(used.directory)
        lock = lock_directory(str(directory))
    except Fail as error:
        raise NotAdopted(error.detail) from error
    except Refused as refused:
        in_use = refused.reason == Reason.PROFILE_IN_USE_ELSEWHERE
        raise NotAdopted("it is in use under a lease" if in_use else refused.message) from refused
    try:
        _refuse(directory)
        if not never_opened(directory):
            raise NotAdopted("it was opened or adopted a moment ago")
        yield
        if not seal_directory(str(directory), None):
            raise NotAdopted(f"{directory} cannot be written to")
    finally:
        os.close(lock)


def _find_one(profile: Profile, data_dir: Path) -> UsedDirectory | None:
    path = directory_of(profile, data_dir)
    try:
        if never_opened(path):
            return UsedDirectory(profile=profile, directory=path, engine=last_engine(path))
        if (path / _INNER).is_file() and not (path / "Default").exists():
            inner = f"it is one profile inside a browser's user data; name the folder around it, {path.parent}"
            return UsedDirectory(profile=profile, directory=path, refused=f"{inner} (Leasekeeper uses its Default)")
    except OSError:
        pass  # not readable for us: opening it will fail with a message
    return None


def _checked(used: UsedDirectory, owners: Mapping[Path, list[str]]) -> UsedDirectory:
    if used.refused:
        return used
    try:
        real = real_directory(used.directory)
        refused = _shared(used.profile.profile_id, real, owners) or _refused(real)
    except Fail as error:
        refused = error.detail
    return UsedDirectory(profile=used.profile, directory=used.directory, engine=used.engine, refused=refused)


def _refuse(directory: Path) -> None:
    refused = _refused(directory)
    if refused:
        raise NotAdopted(refused)


def _refused(directory: Path) -> str:
    """Why it cannot be adopted; empty if it can."""
    try:
        for path in (directory, directory / "Default"):
            if path.exists() and path.stat().st_uid != os.geteuid():
                return f"{path} belongs to another user: apply as that one, which must also run the workers"
        inspect(directory, engine=_ANY_ENGINE)  # refuses one that a browser has open, or that cannot be read
    except Fail as error:
        return error.detail
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"
    return ""


def _owners(profiles: Iterable[Profile], data_dir: Path) -> dict[Path, list[str]]:
    """The profiles of each real directory: through links, two profiles may use the same one."""
    owners: dict[Path, list[str]] = {}
    for profile in profiles:
        owners.setdefault(directory_of(profile, data_dir).expanduser().resolve(), []).append(profile.profile_id)
    return owners


def _shared(profile_id: str, real: Path, owners: Mapping[Path, list[str]]) -> str:
    for path in (real, *real.parents):
        for other in owners.get(path, ()):
            if other != profile_id:
                where = "is that of" if path == real else "lies inside that of"
                return f"it {where} profile {other} too: each profile needs a directory of its own"
    return ""
