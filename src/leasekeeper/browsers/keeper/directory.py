"""Takes a profile directory for one browser: locks it, records its token, checks for other users, removes leftovers.

Knows Chromium's own locks and leftovers. `fence_file` has the fence file and our lock.
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
# A browser locks these databases as long as it lives. The kernel's locks can be seen from every container.
_DATABASES = ("Local Storage/leveldb", "Session Storage", "Site Characteristics Database", "shared_proto_db")
# Older versions begin the name with a dot.
_SOCKET_FOLDERS = ("org.chromium.", ".org.chromium.", "com.google.Chrome.", ".com.google.Chrome.")


def take_directory(user_data_dir: str, token: int, lease_id: str, run_id: str) -> tuple[int, int | None]:
    """Take the directory for this token. Returns the lock's descriptor, and the token that was recorded before.

    Raises Refused if somebody else uses it, or if a higher token was recorded.
    """
    lock = lock_directory(user_data_dir)
    try:
        before = record_token(user_data_dir, token, lease_id, run_id)
        user = other_user_of(user_data_dir)
        if user is not None:
            raise Refused(PROFILE_IN_USE_ELSEWHERE, user)
        clear_singletons(user_data_dir)
    except BaseException:
        os.close(lock)  # some processes continue after a refusal
        raise
    return lock, before


def forget_tabs(user_data_dir: str) -> None:
    """Delete the tabs that the last browser had open, so that the next one starts with an empty page.

    Session cookies are stored elsewhere and stay. Only under the lock, just before a launch.
    """
    folder = f"{user_data_dir}/Default/Sessions"
    if os.path.realpath(folder) != os.path.realpath(user_data_dir) + "/Default/Sessions":
        return  # a link to another place: do not delete files there
    try:
        for name in os.listdir(folder):
            os.unlink(f"{folder}/{name}")
    except OSError:
        return  # there are none, or they cannot be deleted: then the browser opens them again


def forbid_debugging(user_data_dir: str) -> None:
    """Turn off "Allow remote debugging" of chrome://inspect, which the profile remembers: its port would bypass the
    lease. Only under the lock, just before a launch. Raises Refused if that cannot be done."""
    path = f"{user_data_dir}/Local State"
    try:
        with open(path, "rb") as file:
            content = file.read()
        if _DEBUGGING not in content:
            return
        import json  # most launches do not need it

        found = json.loads(content)
        found["devtools"]["remote_debugging"].pop("user-enabled", None)
        write_durably(path, json.dumps(found, separators=(",", ":")).encode())
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"its profile allows remote debugging, and that cannot be taken back: {type(error).__name__}"
        raise Refused(BROWSER_LAUNCH_FAILED, message) from None


def singleton_lock(user_data_dir: str) -> str | None:
    """The content of Chromium's own lock, `host-pid`; None if there is no lock."""
    try:
        return os.readlink(f"{user_data_dir}/SingletonLock")
    except OSError:
        return None


def locked_database(user_data_dir: str) -> str | None:
    """The path of a database that a live browser has locked; None if none is locked.

    This also finds a browser in another container, whose process and hostname cannot be seen from here. It only queries
    the lock: taking it, even briefly, could make a browser that starts now lose its database.
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
    """Remove the locks that a dead browser, or one of another host, left. Only under our lock, with no user left."""
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
    """Delete a dead browser's socket and its folder below /tmp. The folder is deleted only if nothing else is in it.

    Anybody who can write to the profile can change the link: so only a Chromium socket without a listener is deleted.
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
        return  # another user's, missing, or not empty: it does no harm


def _is_listening(path: str) -> bool:
    """Whether a process may be listening on the socket; False only if the connection is refused."""
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
        # Another program may have got this process id since: it counts only if it has files open in here.
        pid = int(number)
        if is_alive(pid) and has_files_in(pid, user_data_dir):
            return f"{user_data_dir} is open in process {pid} of this machine: close it first"
    locked = locked_database(user_data_dir)
    if locked is None:
        return None
    return f"{locked} is locked by a browser of another container or host ({found or 'no name'}): close it first"
