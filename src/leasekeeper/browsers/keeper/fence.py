"""The fence around a profile directory: its lock, the highest token it was opened under, and who else is in it.

The lock is a flock whose descriptor the browser inherits, so the directory stays taken while a browser lives even if
its keeper was killed. The fence file outlives both: a lower token is refused for ever.
"""

# pathlib would add 5 ms to every launch.
# ruff: noqa: PTH103, PTH105, PTH106, PTH108, PTH115, PTH118, PTH119, PTH120, PTH123, PTH208

import fcntl
import os
import stat
import sys

from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.browsers.keeper.processes import has_files_in, is_alive, users_of
from leasekeeper.browsers.keeper.quick import from_json, sockets, to_json

_FOLDER = ".leasekeeper"
_SINGLETONS = ("SingletonLock", "SingletonCookie", "SingletonSocket")
_IN_USE = "PROFILE_IN_USE_ELSEWHERE"
# A browser locks its databases for as long as it lives, and the kernel knows of that in every container.
_DATABASES = ("Local Storage/leveldb", "Session Storage", "Site Characteristics Database", "shared_proto_db")
# Older versions put a dot in front.
_SOCKET_FOLDERS = ("org.chromium.", ".org.chromium.", "com.google.Chrome.", ".com.google.Chrome.")


def enclose(user_data_dir: str, token: int, lease_id: str, run_id: str) -> int:
    """Take the directory for this token and make it fit for a launch. Returns the lock's descriptor.

    Raises Refused if somebody else is in it, or if a higher token has been.
    """
    own = os.path.join(user_data_dir, _FOLDER)
    try:
        os.makedirs(own, mode=0o700, exist_ok=True)
        lock = os.open(own + "/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refused("BROWSER_LAUNCH_FAILED", f"cannot use {user_data_dir}: {error}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(_IN_USE, f"{user_data_dir} is locked: a browser of another lease still lives in it") from None
        raise_fence(user_data_dir, token, lease_id, run_id)
        company = company_in(user_data_dir)
        if company is not None:
            raise Refused(_IN_USE, company)
        clear_singletons(user_data_dir)
    except BaseException:
        os.close(lock)  # not every process that is refused ends with it
        raise
    return lock


def raise_fence(user_data_dir: str, token: int, lease_id: str, run_id: str) -> None:
    """Record the token as the highest, durably. Only under the lock. Raises Refused for a lower one.

    The same token is for the same run only: leases of another store may have the same name.
    """
    path = f"{user_data_dir}/{_FOLDER}/fence"
    try:
        with open(path, "rb") as file:
            found = from_json(file.read())
        highest, holder = int(str(found["token"])), found.get("run_id")
    except FileNotFoundError:
        highest, holder = -1, None
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{path} cannot be read ({error}), so it is unknown who was here last; look, then remove it"
        raise Refused("STALE_TOKEN", message) from None
    if token < highest or (token == highest and run_id != holder):
        message = f"lease {lease_id} has token {token}, but {user_data_dir} was already opened under {highest}"
        raise Refused("STALE_TOKEN", message)
    if token == highest:
        return
    try:
        write_whole(path, to_json({"version": 1, "token": token, "lease_id": lease_id, "run_id": run_id}))
    except OSError as error:
        raise Refused("BROWSER_LAUNCH_FAILED", f"cannot write {path}: {error}") from None


def write_whole(path: str, content: bytes) -> None:
    """Write a file so that after a power cut there is the old one or the new one, never a part."""
    part = f"{path}.part"
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)  # a full disk must not be filled further by what could not be finished
        raise
    finally:
        os.close(handle)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def singleton_lock(user_data_dir: str) -> str | None:
    """What Chromium's own lock says, as `host-pid`; None if there is none."""
    try:
        return os.readlink(f"{user_data_dir}/SingletonLock")
    except OSError:
        return None


def locked_database(user_data_dir: str) -> str | None:
    """A database of the directory that a live browser has locked; None if there is none.

    Such a browser may be in another container, where neither its process nor its host's name tells that it lives.
    Only asks: taking such a lock, however briefly, could make a browser that starts now give its database up.
    """
    try:
        folders = os.listdir(user_data_dir)
    except OSError:
        return None
    paths = (f"{user_data_dir}/{folder}/{name}/LOCK" for folder in folders for name in _DATABASES)
    return next((path for path in paths if _is_locked(path)), None)


def _is_locked(path: str) -> bool:
    """Whether another process holds a POSIX lock on the file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A `struct flock`: its first field is the type, the others are zero for the whole file.
        question = fcntl.F_WRLCK.to_bytes(2, sys.byteorder) + bytes(30)
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, question)
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(handle)
    return int.from_bytes(answer[:2], sys.byteorder) != fcntl.F_UNLCK


def clear_singletons(user_data_dir: str) -> None:
    """Remove what a dead browser, or one of another host, left behind. Only under the lock, with nobody inside."""
    if locked_database(user_data_dir) is not None:
        return
    for name in _SINGLETONS:
        path = f"{user_data_dir}/{name}"
        try:
            target = os.readlink(path)
            os.unlink(path)
        except OSError:
            continue
        if name == "SingletonSocket":
            _clear_socket(target)


def _clear_socket(path: str) -> None:
    """Chromium keeps its socket in a folder of its own below /tmp; rmdir takes it only if nothing else is in it.

    Whoever can write to the profile decides where the link leads: what is not such a socket, and dead, is left alone.
    """
    folder, name = os.path.split(path)
    if name != "SingletonSocket" or not os.path.basename(folder).startswith(_SOCKET_FOLDERS):
        return
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode) or _is_heard(path):
            return
        os.unlink(path)
        os.unlink(f"{folder}/SingletonCookie")
        os.rmdir(folder)
    except OSError:
        return  # not ours, not there, or not empty: it harms nobody


def _is_heard(path: str) -> bool:
    """Whether somebody may be listening on the socket."""
    caller = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    caller.setblocking(False)
    try:
        caller.connect(path)
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    finally:
        caller.close()
    return True


def company_in(user_data_dir: str) -> str | None:
    """Who else has the directory open, as a sentence; None if nobody. Browsers started by hand hold no lock of ours."""
    for pid in users_of(user_data_dir):
        return f"{user_data_dir} is open in a browser that this run did not start (process {pid}): close it first"
    found = singleton_lock(user_data_dir)
    host, _, number = (found or "").rpartition("-")
    if host == os.uname().nodename and number.isdecimal():
        # The number may have been given to another program since: only one with files open in here is company.
        pid = int(number)
        if is_alive(pid) and has_files_in(pid, user_data_dir):
            return f"{user_data_dir} is open in process {pid} of this machine: close it first"
    locked = locked_database(user_data_dir)
    if locked is None:
        return None
    return f"{locked} is locked by a browser of another container or host ({found or 'no name'}): close it first"
