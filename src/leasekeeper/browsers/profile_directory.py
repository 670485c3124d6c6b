"""A profile's directory before a browser opens in it: where it is, whether it may be opened, whether it was touched.

Refusals are `Fail`s with a reason of the table. The keeper checks again under the directory's lock, and decides.
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

# A directory that is not empty has one of these, or is not a browser's.
_SIGNS: Final = ("Local State", "Default", "Last Version", "SingletonLock", OWN_FOLDER)
_JSON_FILES: Final = ("Local State", "Default/Preferences")


class Condition(StrEnum):
    """What a directory looks like before a launch."""

    NEW = "new"  # nothing in it yet
    SEALED = "sealed"  # as the last run left it
    UNSEALED = "unsealed"  # the last run did not end with a proven close: the store knows why
    CHANGED = "changed"  # touched since the last run
    ADOPTED = "adopted"  # a profile that somebody else made


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was found. `engine` is the browser's major version that used the profile last."""

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
    """A directory that is not the profile's as its store knows it.

    `directory_token` is the token that it was opened under, which this store never granted.
    """

    def __init__(self, reason: str, detail: str, *, directory_token: int | None = None) -> None:
        super().__init__(reason, detail)
        self.directory_token = directory_token


def directory_of(profile: Profile, data_dir: Path) -> Path:
    """Where a profile's browser keeps its session, on this machine."""
    return Path(profile.user_data_dir or data_dir / "profiles" / profile.profile_id)


def claim_directory(path: Path) -> Path:
    """The real path of a profile's directory, made if need be, open to its owner only.

    Raises Fail if it cannot be a profile's own: a system folder, a folder of something else, a link out of its folder.
    """
    real = real_directory(path)
    try:
        real.mkdir(mode=0o700, parents=True, exist_ok=True)
        # In this order: whoever makes the directory at this moment begins with a sign.
        if any(real.iterdir()) and not any((real / sign).exists() for sign in _SIGNS):
            raise _mismatch(f"{path} holds something else than a browser's user data; give the profile one of its own")
        if stat.S_IMODE(real.stat().st_mode) & 0o077:
            real.chmod(0o700)
    except OSError as error:
        raise Fail(Reason.BROWSER_LAUNCH_FAILED, f"{path} cannot be used: {error.strerror}") from error
    return real


def real_directory(path: Path) -> Path:
    """Where a profile's directory really is; it need not be there. Raises Fail if it cannot be a profile's own."""
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
    """Raise StrangeDirectory for one that another store has opened: a store's tokens only grow, and this one has a
    higher one, or the same of another run. A person has to decide."""
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
    """Raise StrangeDirectory for an empty one of a profile that a browser (`opened_by`) has used.

    A worker that was started somewhere else would begin a new session of it, unnoticed.
    """
    if opened_by is None or fingerprint(str(directory)):
        return
    with suppress(OSError):
        directory.rmdir()  # made a moment ago
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
    """Seal the directory as it is: what somebody changed in it was reported, and must not be found again.

    Under the directory's lock, and only if no higher token was here. Raises Fail if somebody has the directory.
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
