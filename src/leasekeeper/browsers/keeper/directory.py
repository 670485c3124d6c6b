"""A profile directory taken for one browser: locked, its token recorded, nobody else in it, what was left cleared.

Knows Chromium's own locks and leftovers. The fence file and the lock itself are `fence_file`'s.
"""

# pathlib would add 5 ms to every launch.
# ruff: noqa: PTH106, PTH108, PTH115, PTH119, PTH123, PTH208

import fcntl
import os
import stat
import sys

from leasekeeper.browsers.keeper.fast_imports import sockets
from leasekeeper.browsers.keeper.fence_file import lock_directory, record_token, write_durably
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.browsers.keeper.processes import has_files_in, is_alive, users_of
from leasekeeper.browsers.keeper.reasons import BROWSER_LAUNCH_FAILED, PROFILE_IN_USE_ELSEWHERE

_DEBUGGING = b'"user-enabled":'
_SINGLETONS = ("SingletonLock", "SingletonCookie", "SingletonSocket")
# A browser locks its databases for as long as it lives, and the kernel knows of that in every container.
_DATABASES = ("Local Storage/leveldb", "Session Storage", "Site Characteristics Database", "shared_proto_db")
# Older versions put a dot in front.
_SOCKET_FOLDERS = ("org.chromium.", ".org.chromium.", "com.google.Chrome.", ".com.google.Chrome.")


def take_directory(user_data_dir: str, token: int, lease_id: str, run_id: str) -> tuple[int, int | None]:
    """Take the directory for this token. Returns the lock's descriptor, and the token that was recorded before.

    Raises Refused if somebody else is in it, or if a higher token has been.
    """
    lock = lock_directory(user_data_dir)
    try:
        before = record_token(user_data_dir, token, lease_id, run_id)
        user = other_user_of(user_data_dir)
        if user is not None:
            raise Refused(PROFILE_IN_USE_ELSEWHERE, user)
        clear_singletons(user_data_dir)
    except BaseException:
        os.close(lock)  # not every process that is refused ends with it
        raise
    return lock, before


def forget_tabs(user_data_dir: str) -> None:
    """Delete the tabs that the last browser had open, so that the next one starts with an empty page.

    Session cookies are not there: they stay. Only under the lock, just before a launch.
    """
    folder = f"{user_data_dir}/Default/Sessions"
    if os.path.realpath(folder) != os.path.realpath(user_data_dir) + "/Default/Sessions":
        return  # a link that leads elsewhere: those are not tabs
    try:
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
    except OSError:
        return  # none, or not removable: the browser then shows them again


def forbid_debugging(user_data_dir: str) -> None:
    """Take back "Allow remote debugging" of chrome://inspect, which the profile remembers: its port would be a way
    around the lease. Only under the lock, just before a launch. Raises Refused if that cannot be done."""
    path = f"{user_data_dir}/Local State"
    try:
        with open(path, "rb") as file:
            content = file.read()
        if _DEBUGGING not in content:
            return
        import json  # not on the way of most launches

        found = json.loads(content)
        found["devtools"]["remote_debugging"].pop("user-enabled", None)
        write_durably(path, json.dumps(found, separators=(",", ":")).encode())
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"its profile allows remote debugging, and that cannot be taken back: {type(error).__name__}"
        raise Refused(BROWSER_LAUNCH_FAILED, message) from None


def singleton_lock(user_data_dir: str) -> str | None:
    """What Chromium's own lock says, as `host-pid`; None if there is none."""
    try:
        return os.readlink(f"{user_data_dir}/SingletonLock")
    except OSError:
        return None


def locked_database(user_data_dir: str) -> str | None:
    """A database of the directory that a live browser has locked; None if there is none.

    Such a browser may be in another container, where neither its process nor its host's name shows that it is alive.
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
        if not stat.S_ISSOCK(os.lstat(path).st_mode) or _is_listening(path):
            return
        os.unlink(path)
        os.unlink(f"{folder}/SingletonCookie")
        os.rmdir(folder)
    except OSError:
        return  # not ours, not there, or not empty: it harms nobody


def _is_listening(path: str) -> bool:
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


def other_user_of(user_data_dir: str) -> str | None:
    """Who else has the directory open, as a sentence; None if nobody. Browsers started by hand hold no lock of ours."""
    for pid in users_of(user_data_dir):
        return f"{user_data_dir} is open in a browser that this run did not start (process {pid}): close it first"
    found = singleton_lock(user_data_dir)
    host, _, number = (found or "").rpartition("-")
    if host == os.uname().nodename and number.isdecimal():
        # The number may have been given to another program since: only one with files open in here counts.
        pid = int(number)
        if is_alive(pid) and has_files_in(pid, user_data_dir):
            return f"{user_data_dir} is open in process {pid} of this machine: close it first"
    locked = locked_database(user_data_dir)
    if locked is None:
        return None
    return f"{locked} is locked by a browser of another container or host ({found or 'no name'}): close it first"
