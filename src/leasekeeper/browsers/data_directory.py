"""A worker's data directory: created and checked. Only its user may own it and write to it: programs in it are run.

Checked at every start of a worker and of a keeper: whoever could replace `bin/keeper`, or a folder above it, could run
anything as the worker's user.
"""

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from leasekeeper.errors import InputError

FOLDERS: Final = ("bin", "open", "profiles", "runs")
PROBE: Final = ".probe-"
_ADVICE: Final = "set LEASEKEEPER_DATA_DIR to a folder that only you may write to"
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def claim_data_dir(folder: Path) -> None:
    """Make the data directory and its folders. Raises InputError if they cannot be made, or others may write there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_data_dir(folder)
        for path in (folder / name for name in FOLDERS):
            path.mkdir(mode=0o700, exist_ok=True)
            facts = path.stat()
            if facts.st_uid != os.geteuid():
                raise _owned_by_another(path)
            if facts.st_mode & _OTHERS_WRITE:
                path.chmod(stat.S_IMODE(facts.st_mode) & ~_OTHERS_WRITE)
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        advice = "set LEASEKEEPER_DATA_DIR to a folder that you may write to"
        raise InputError(f"{error.filename} cannot be used: {why}; {advice}") from None


def check_data_dir(folder: Path) -> None:
    """Raise InputError if another user owns the data directory or could replace what lies in it.

    The folder is its user's alone. A folder above it may be root's; others may write to it only if it is sticky, as
    /tmp is: then they cannot rename what is not theirs.
    """
    facts = folder.stat()
    if facts.st_uid != os.geteuid():
        raise _owned_by_another(folder)
    if _others_write(facts):
        raise InputError(
            f"{folder} can be written to by other users (mode {stat.S_IMODE(facts.st_mode):04o}), and Leasekeeper runs "
            f"programs that lie in it: run `chmod go-w {folder}`, or {_ADVICE}"
        )
    for parent in dict.fromkeys((*folder.absolute().parents, *folder.resolve().parents)):
        above = parent.stat()
        if above.st_uid not in (0, os.geteuid()):
            raise InputError(f"{parent}, above {folder}, belongs to another user, who could replace it: {_ADVICE}")
        if _others_write(above) and not above.st_mode & stat.S_ISVTX:
            raise InputError(
                f"{parent}, above {folder}, can be written to by other users (mode {stat.S_IMODE(above.st_mode):04o}), "
                f"who could replace it: run `chmod go-w {parent}`, or {_ADVICE}"
            )


def try_data_dir(folder: Path) -> None:
    """Write a small file into each folder, as every run does. Raises InputError that says what is wrong, and where."""
    try:
        check_data_dir(folder)
        for path in (folder / name for name in FOLDERS):
            with tempfile.NamedTemporaryFile(dir=path, prefix=PROBE) as file:
                file.write(b"\0")
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        # A temporary file's name says nothing: the folder is what cannot be used.
        path = Path(error.filename or folder)
        place = path.parent if path.name.startswith(PROBE) else path
        why = f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, 'no number')})"
        raise InputError(f"{place} cannot be used: {why}; the worker's user must own it and may write to it") from error


def _owned_by_another(path: Path) -> InputError:
    return InputError(f"{path} belongs to another user: work as that one, or {_ADVICE}")


def _others_write(facts: os.stat_result) -> bool:
    """Whether other users may write. The user's private group, which many systems create, does not count."""
    if facts.st_mode & stat.S_IWOTH:
        return True
    return bool(facts.st_mode & stat.S_IWGRP) and not _is_own_group(facts.st_gid)


def _is_own_group(gid: int) -> bool:
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}


def place_program(data_dir: Path, name: str, text: str) -> Path:
    """Write `bin/NAME` and return its path. Atomic and idempotent: several workers may do it at once.

    An existing file is kept only if it is the user's own, not writable by others, and has exactly this text.
    """
    folder = data_dir.absolute() / "bin"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    if _is_in_place(path, text):
        return path
    handle, part = tempfile.mkstemp(prefix=f".{name}-", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o700)
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    return path


def _is_in_place(path: Path, text: str) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        ours = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & _OTHERS_WRITE
        return ours and bool(facts.st_mode & stat.S_IXUSR) and file.read(len(text) * 4 + 1) == text.encode()
