"""A look at a profile directory before a browser opens in it, and the seal on it after a proven close.

The seal is a fingerprint (sizes and times, no contents) of the files that a session lives in. If it does not fit at
the next checkout, somebody used the profile outside a lease. A run that ended without a seal is told from that by
the keeper's fence: it then holds a higher token than the seal. Refusals are `Fail`s with a reason of the table.
"""

import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from leasekeeper.browsers.keeper.fence import company_in, write_whole
from leasekeeper.core.profiles import Profile
from leasekeeper.errors import Fail, InputError

OWN_FOLDER: Final = ".leasekeeper"
SEAL_VERSION: Final = 1
_SEAL: Final = "closed.json"
_FENCE: Final = "fence"

# What a session lives in. A browser that was only opened and closed changes several of them.
_FILES: Final = (
    "Local State",
    "Last Version",
    "Default/Preferences",
    "Default/Secure Preferences",
    "Default/Cookies",
    "Default/Network/Cookies",
    "Default/Login Data",
    "Default/Web Data",
    "Default/History",
)
_FOLDERS: Final = ("Default/Local Storage/leveldb", "Default/IndexedDB", "Default/Session Storage")
# A directory that is not empty has one of these, or is not a browser's.
_SIGNS: Final = ("Local State", "Default", "Last Version", "SingletonLock", OWN_FOLDER)
_JSON_FILES: Final = ("Local State", "Default/Preferences")

Fingerprint = dict[str, list[int]]


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
    def words(self) -> str:
        """What to tell a person who asks why this counts as manual use; empty if it does not."""
        if self.condition is Condition.ADOPTED:
            return "the directory held a used profile before Leasekeeper first opened it"
        if self.condition is Condition.CHANGED:
            return f"changed since the last run closed: {', '.join(self.changed)}"
        return ""


def claim_data_dir(folder: Path) -> None:
    """Make a worker's folders, for its own user alone to write to: what lies in `bin` is run.

    Raises InputError if they cannot be made, or belong to another user.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (folder / name for name in ("bin", "open", "profiles", "runs")):
            path.mkdir(mode=0o700, exist_ok=True)
            facts = path.stat()
            if facts.st_uid != os.geteuid():
                raise InputError(f"{path} belongs to another user: work as that one, or set LEASEKEEPER_DATA_DIR")
            if facts.st_mode & 0o022:
                path.chmod(stat.S_IMODE(facts.st_mode) & ~0o022)
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        advice = "set LEASEKEEPER_DATA_DIR to a folder that you may write to"
        raise InputError(f"{error.filename} cannot be used: {why}; {advice}") from None


class StrangeDirectory(Fail):
    """A directory that is not the profile's as its store knows it. `fence` is the foreign token that it has."""

    def __init__(self, reason: str, detail: str, *, fence: int | None = None) -> None:
        super().__init__(reason, detail)
        self.fence = fence


def directory_of(profile: Profile, data_dir: Path) -> Path:
    """Where a profile's browser keeps its session, on this machine."""
    return Path(profile.user_data_dir or data_dir / "profiles" / profile.profile_id)


def claim_directory(path: Path) -> Path:
    """The real path of a profile's directory, made if need be, open to its owner only.

    Raises Fail if it cannot be a profile's own: a system folder, a folder of something else, a link out of its folder.
    """
    path = path.expanduser().absolute()
    real = path.resolve()
    if len(real.parts) <= 2 or real == Path.home().resolve():
        raise _mismatch(f"{path} cannot be a profile's directory; give the profile one of its own")
    if path.is_symlink() and not real.is_relative_to(path.parent.resolve()):
        raise _mismatch(f"{path} is a link to {real}, outside its folder; name the real directory")
    try:
        real.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not any((real / sign).exists() for sign in _SIGNS) and any(real.iterdir()):
            raise _mismatch(f"{path} holds something else than a browser's user data; give the profile one of its own")
        if stat.S_IMODE(real.stat().st_mode) & 0o077:
            real.chmod(0o700)
    except OSError as error:
        raise Fail("BROWSER_LAUNCH_FAILED", f"{path} cannot be used: {error.strerror}") from error
    return real


def _mismatch(message: str) -> Fail:
    return Fail("PROFILE_MISMATCH", message)


def inspect(directory: Path, *, engine: int) -> Inspection:
    """Look at a claimed directory before a browser of this engine opens it. Raises Fail if it must not.

    Reasons: PROFILE_IN_USE_ELSEWHERE, PROFILE_NEWER_THAN_BROWSER, PROFILE_CORRUPT.
    """
    _refuse_company(directory)
    last = last_engine(directory)
    if last is not None and last > engine:
        raise Fail(
            "PROFILE_NEWER_THAN_BROWSER",
            f"the profile was last used by version {last}, this browser is {engine}: an older one would damage it",
        )
    for name in _JSON_FILES:
        _refuse_broken(directory, name)
    now = fingerprint(directory)
    condition, changed = _condition(directory, now)
    return Inspection(condition=condition, changed=changed, engine=last)


def _condition(directory: Path, now: Fingerprint) -> tuple[Condition, tuple[str, ...]]:
    sealed = _read(directory / OWN_FOLDER / _SEAL)
    token = _token(directory)
    if sealed is None:
        if not now:
            return Condition.NEW, ()
        return (Condition.ADOPTED if token is None else Condition.UNSEALED), ()
    before = sealed.get("files")
    if sealed.get("version") != SEAL_VERSION or not isinstance(before, dict) or sealed.get("token") != token:
        return Condition.UNSEALED, ()
    changed = tuple(sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)))
    return (Condition.CHANGED if changed else Condition.SEALED), changed


def refuse_foreign(directory: Path, *, token: int, run_id: str) -> None:
    """Raise StrangeDirectory for one that was in other hands: a store's tokens only grow, and this one has a higher
    one, or the same of another run. A person has to look."""
    found = _token(directory)
    holder = (_read(directory / OWN_FOLDER / _FENCE) or {}).get("run_id")
    if found is not None and (found > token or (found == token and holder != run_id)):
        raise StrangeDirectory(
            "PROFILE_IN_USE_ELSEWHERE",
            f"{directory} was already opened under token {found}, and this lease has {token}: by another store, or by "
            "this one before it was restored or made anew. Make sure that no other store uses the directory, then "
            f"clear the profile: its next leases are above {found}",
            fence=found,
        )


def refuse_empty(directory: Path, *, opened_by: int | None) -> None:
    """Raise StrangeDirectory for an empty one of a profile that a browser (`opened_by`) has used.

    A worker that was started somewhere else would begin a new session of it, unnoticed.
    """
    if opened_by is None or fingerprint(directory):
        return
    with suppress(OSError):
        directory.rmdir()  # made a moment ago
    raise StrangeDirectory(
        "PROFILE_DIRECTORY_EMPTY",
        f"the profile was opened before, by browser version {opened_by}, but {directory} is empty: its session is "
        "somewhere else. Let the worker look there (LEASEKEEPER_DATA_DIR, or user_data_dir in the fleet file), or "
        "clear the profile to begin with an empty one",
    )


def seal(directory: Path) -> None:
    """Remember the directory as it is. Only after a proven close: nothing may write to it any more."""
    _write_seal(directory, fingerprint(directory))


def keep_seal(directory: Path, token: int) -> None:
    """Let the seal count for this token too: the directory was fenced for it, but no browser was started in it.

    Only if the seal was valid before the launch; what has changed since the seal must be noticed as before.
    """
    if _token(directory) != token:
        return  # not fenced for it, or for somebody else by now
    files = (_read(directory / OWN_FOLDER / _SEAL) or {}).get("files", {})
    _write_seal(directory, files)


def _write_seal(directory: Path, files: object) -> None:
    content = {"version": SEAL_VERSION, "token": _token(directory), "files": files}
    own = directory / OWN_FOLDER
    own.mkdir(mode=0o700, exist_ok=True)
    write_whole(str(own / _SEAL), json.dumps(content).encode())


def last_engine(directory: Path) -> int | None:
    """The major version of the browser that used the profile last; None if none has."""
    try:
        text = (directory / "Last Version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    major = text.strip().partition(".")[0]
    return int(major) if major.isascii() and major.isdecimal() else None


def fingerprint(directory: Path) -> Fingerprint:
    """Sizes and times of what a session lives in. Empty for a directory that no browser has used."""
    found: Fingerprint = {}
    for name in _FILES:
        try:
            facts = os.stat(f"{directory}/{name}")  # noqa: PTH116 - pathlib takes ten times as long
        except OSError:
            continue
        found[name] = [facts.st_size, facts.st_mtime_ns]
    for name in _FOLDERS:
        try:
            with os.scandir(f"{directory}/{name}") as entries:
                facts_of = [entry.stat(follow_symlinks=False) for entry in entries]
        except OSError:
            continue
        newest = max((facts.st_mtime_ns for facts in facts_of), default=0)
        found[name] = [len(facts_of), sum(facts.st_size for facts in facts_of), newest]
    return found


def _refuse_company(directory: Path) -> None:
    """The same look as the keeper's, but before Playwright is started. The keeper's, under its lock, decides."""
    company = company_in(str(directory))
    if company is not None:
        raise Fail("PROFILE_IN_USE_ELSEWHERE", company)


def _refuse_broken(directory: Path, name: str) -> None:
    path = directory / name
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        raise Fail("PROFILE_CORRUPT", f"{path} cannot be read: {type(error).__name__}") from error
    if not isinstance(content, dict):
        raise Fail("PROFILE_CORRUPT", f"{path} does not hold what a browser writes there")


def _token(directory: Path) -> int | None:
    """The highest token that a keeper opened this directory under; None if none has, -1 if that cannot be read."""
    path = directory / OWN_FOLDER / _FENCE
    content = _read(path)
    if content is None:
        return -1 if path.exists() else None
    token = content.get("token")
    return token if isinstance(token, int) else -1


def _read(path: Path) -> dict[str, object] | None:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
