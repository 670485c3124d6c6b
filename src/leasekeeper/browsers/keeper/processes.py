"""Who lives in a profile directory, read from /proc. Knows nothing of leases.

A browser's own child processes rewrite their command line into one string, so a flag's value is searched for in both
forms; a browser that we started is also known by its session, which its children share.
"""

# pathlib would add 5 ms to every launch.
# ruff: noqa: PTH115, PTH118, PTH123, PTH208

import os

DIRECTORY_FLAG = "--user-data-dir="
_OURS = "leasekeeper.browsers.keeper"
_WRAPPER = "/bin/keeper"


def users_of(user_data_dir: str) -> list[int]:
    """Processes that were started on this directory, keepers and their waiting shells left out."""
    wanted = os.path.realpath(user_data_dir)
    return [pid for pid in _pids() if _uses(pid, wanted)]


def family_of(session: int, user_data_dir: str) -> list[int]:
    """What is alive of a browser: its session, and whatever else is on its directory. Zombies have ended."""
    wanted = os.path.realpath(user_data_dir)
    return [pid for pid in _pids() if _session_of(pid) == session or _uses(pid, wanted)]


def members_of(session: int) -> list[int]:
    """What is alive of a session."""
    return [pid for pid in _pids() if _session_of(pid) == session]


def own_processes() -> list[int]:
    """Every process of this user but this one."""
    found = []
    for pid in _pids():
        try:
            if os.stat(f"/proc/{pid}").st_uid == os.geteuid():  # noqa: PTH116 - pathlib is not loaded here
                found.append(pid)
        except OSError:
            continue
    return found


def is_alive(pid: int) -> bool:
    """True for a process that exists and has not ended; one that may not be read counts as alive."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in ("Z", "X")


def has_files_in(pid: int, user_data_dir: str) -> bool:
    """Whether the process has a file open below the directory; yes, if that may not be seen."""
    folder, wanted = f"/proc/{pid}/fd", os.path.realpath(user_data_dir) + "/"
    try:
        for name in os.listdir(folder):
            try:
                if os.readlink(f"{folder}/{name}").startswith(wanted):
                    return True
            except FileNotFoundError:
                continue
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def _uses(pid: int, wanted: str) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid not in (os.geteuid(), 0):  # noqa: PTH116 - pathlib is not loaded here
            return False  # other users cannot be inside a directory of ours, whatever their command line says
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except OSError:
        return False
    if DIRECTORY_FLAG.encode() not in line:
        return False
    arguments = os.fsdecode(line).split("\0")
    if any(_OURS in argument for argument in arguments) or any(a.endswith(_WRAPPER) for a in arguments[:2]):
        return False
    named = [part.partition(" --")[0] for argument in arguments for part in argument.split(DIRECTORY_FLAG)[1:]]
    return any(os.path.realpath(os.path.join(_home_of(pid), name)) == wanted for name in named)


def _home_of(pid: int) -> str:
    """Where a relative path of this process begins."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return "/"


def _session_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[3])


def _stat(pid: int) -> list[str] | None:
    """State, parent, group, session and so on; the program's name before them may hold anything, also brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None
