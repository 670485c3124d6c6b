"""A profile's directory before a browser opens it: its path, whether it may be opened, whether somebody changed it.

Raises `Fail` with a reason of the failure table. The keeper checks again under the directory's lock; its answer counts.
"""

import json
import stat
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from leasekeeper.browsers.keeper.directory import other_user_of
from leasekeeper.browsers.keeper.fence_file import OWN_FOLDER, FenceUnreadable, read_fence
from leasekeeper.browsers.keeper.seal import fingerprint, read_seal, seal_directory
from leasekeeper.browsers.locked_directory import lock
from leasekeeper.core.failures import Reason
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import Fail

# A user data directory that is not empty has at least one of these.
_SIGNS: Final = ("Local State", "Default", "Last Version", "SingletonLock", OWN_FOLDER)
_JSON_FILES: Final = ("Local State", "Default/Preferences")


class Condition(StrEnum):
    """What a directory looks like before a launch."""

    NEW = "new"  # nothing in it yet
    SEALED = "sealed"  # as the last run left it
    UNSEALED = "unsealed"  # the last run did not end with a proven close: the store knows why
    CHANGED = "changed"  # changed since the last run
    ADOPTED = "adopted"  # a used profile that Leasekeeper has not opened yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The result of `inspect`. `changed` names the changed files, `engine` the major version of the last browser."""

    condition: Condition
    changed: tuple[str, ...] = ()
    engine: int | None = None

    @property
    def manual_use(self) -> bool:
        """Whether a person (or another program) used the profile outside a lease."""
        return self.condition in (Condition.CHANGED, Condition.ADOPTED)

    @property
    def manual_use_text(self) -> str:
        """Why this counts as manual use, for a person; empty if it does not."""
        if self.condition is Condition.ADOPTED:
            return "the directory held a used profile before Leasekeeper first opened it"
        if self.condition is Condition.CHANGED:
            return f"changed since the last run closed: {', '.join(self.changed)}"
        return ""


class StrangeDirectory(Fail):
    """The directory does not match what the store knows: another store opened it, or the session is missing.

    `directory_token` is the token in its fence file, which this store never granted; None if the session is missing.
    """

    def __init__(self, reason: str, detail: str, *, directory_token: int | None = None) -> None:
        super().__init__(reason, detail)
        self.directory_token = directory_token


def directory_of(profile: Profile, data_dir: Path) -> Path:
    """The path of a profile's user data directory on this machine."""
    return Path(profile.user_data_dir or data_dir / "profiles" / profile.profile_id)


def claim_directory(path: Path) -> Path:
    """Create a profile's directory if it is missing, make it private, and return its real path.

    Raises Fail if it cannot be a profile's own: a system folder, a folder with other files, a link out of its folder.
    """
    real = real_directory(path)
    try:
        real.mkdir(mode=0o700, parents=True, exist_ok=True)
        # List first, then look for signs: a browser that creates its profile right now writes a sign first.
        if any(real.iterdir()) and not any((real / sign).exists() for sign in _SIGNS):
            raise _mismatch(f"{path} holds something else than a browser's user data; give the profile one of its own")
        if stat.S_IMODE(real.stat().st_mode) & 0o077:
            real.chmod(0o700)
    except OSError as error:
        raise Fail(Reason.BROWSER_LAUNCH_FAILED, f"{path} cannot be used: {error.strerror}") from error
    return real


def real_directory(path: Path) -> Path:
    """The real path of a profile's directory, which need not exist. Raises Fail if it cannot be a profile's own."""
    path = path.expanduser().absolute()
    real = path.resolve()
    if len(real.parts) <= 2 or real == Path.home().resolve():
        raise _mismatch(f"{path} cannot be a profile's directory; give the profile one of its own")
    if path.is_symlink() and not real.is_relative_to(path.parent.resolve()):
        raise _mismatch(f"{path} is a link to {real}, outside its folder; name the real directory")
    return real


def never_opened(directory: Path) -> bool:
    """Whether the directory holds a used profile that Leasekeeper has neither opened nor adopted."""
    return _condition(str(directory))[0] is Condition.ADOPTED


def _mismatch(message: str) -> Fail:
    return Fail(Reason.PROFILE_MISMATCH, message)


def inspect(directory: Path, *, engine: int) -> Inspection:
    """Check a claimed directory before a browser of this engine opens it. Raises Fail if it must not.

    Reasons: PROFILE_IN_USE_ELSEWHERE, PROFILE_NEWER_THAN_BROWSER, PROFILE_CORRUPT.
    """
    user = other_user_of(str(directory))
    if user is not None:
        raise Fail(Reason.PROFILE_IN_USE_ELSEWHERE, user)
    last = last_engine(directory)
    if last is not None and last > engine:
        raise Fail(
            Reason.PROFILE_NEWER_THAN_BROWSER,
            f"the profile was last used by version {last}, this browser is {engine}: an older one would damage it",
        )
    for name in _JSON_FILES:
        _refuse_broken(directory, name)
    condition, changed = _condition(str(directory))
    return Inspection(condition=condition, changed=changed, engine=last)


def _condition(directory: str) -> tuple[Condition, tuple[str, ...]]:
    now, seal = fingerprint(directory), read_seal(directory)
    try:
        fence = read_fence(directory)
    except FenceUnreadable:
        return Condition.UNSEALED, ()
    token = None if fence is None else fence.token
    if seal is None and token is None:
        return (Condition.ADOPTED if now else Condition.NEW), ()
    if seal is None or seal.token != token:
        return Condition.UNSEALED, ()
    before = seal.files
    changed = tuple(sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)))
    return (Condition.CHANGED if changed else Condition.SEALED), changed


def refuse_foreign(directory: Path, *, token: int, run_id: str) -> None:
    """Raise StrangeDirectory if another store opened the directory.

    A store's tokens only grow, so a fence file with a higher token, or with the same token of another run, was written
    by another store. A person has to decide.
    """
    try:
        fence = read_fence(str(directory))
    except FenceUnreadable:
        return  # the keeper refuses it, with the file's name
    if fence is not None and fence.refuses(token, run_id):
        raise StrangeDirectory(
            Reason.PROFILE_IN_USE_ELSEWHERE,
            f"{directory} was already opened under token {fence.token}, and this lease has {token}: by another store, "
            "or by this one before it was restored or made anew. Make sure that no other store uses the directory, "
            f"then clear the profile: its next leases are above {fence.token}",
            directory_token=fence.token,
        )


def refuse_empty(directory: Path, *, opened_by: int | None) -> None:
    """Raise StrangeDirectory if the directory is empty, but a browser has used the profile (`opened_by`, its version).

    Otherwise a worker with the wrong data directory would start a new session, and nobody would notice.
    """
    if opened_by is None or fingerprint(str(directory)):
        return
    with suppress(OSError):
        directory.rmdir()  # `claim_directory` created it a moment ago
    raise StrangeDirectory(
        Reason.PROFILE_DIRECTORY_EMPTY,
        f"the profile was opened before, by browser version {opened_by}, but {directory} is empty: its session is "
        "somewhere else. Point the worker there (LEASEKEEPER_DATA_DIR, or user_data_dir in the fleet file), or "
        "clear the profile to begin with an empty one",
    )


def manual_use_of(directory: Path) -> str:
    """Why the directory counts as used outside a lease, for a person; empty if it does not."""
    condition, changed = _condition(str(directory))
    return Inspection(condition=condition, changed=changed).manual_use_text


def accept_changes(directory: Path, *, token: int, run_id: str) -> None:
    """Seal the directory as it is: its changes were reported and must not be reported again.

    Takes the directory's lock. Raises Fail if the directory is in use, or if another store opened it.
    """
    with lock(directory):
        refuse_foreign(directory, token=token, run_id=run_id)
        with suppress(FenceUnreadable):
            fence = read_fence(str(directory))
            seal_directory(str(directory), None if fence is None else fence.token)


def last_engine(directory: Path) -> int | None:
    """The major version of the browser that used the profile last; None if none has."""
    try:
        text = (directory / "Last Version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    major = text.strip().partition(".")[0]
    return int(major) if major.isascii() and major.isdecimal() else None


def _refuse_broken(directory: Path, name: str) -> None:
    path = directory / name
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        raise Fail(Reason.PROFILE_CORRUPT, f"{path} cannot be read: {type(error).__name__}") from error
    if not isinstance(content, dict):
        raise Fail(Reason.PROFILE_CORRUPT, f"{path} does not hold what a browser writes there")
