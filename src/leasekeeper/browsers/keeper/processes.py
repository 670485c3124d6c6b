"""Finds the processes that use a profile directory, from /proc. Knows nothing of leases.

Chromium's child processes rewrite their command line into one string, so a flag is searched for in both forms. A
browser that a keeper started is also found by its process session, which its child processes share.
"""

# pathlib would add 5 ms to every launch.
# ruff: noqa: PTH115, PTH118, PTH123, PTH208

import os

DIRECTORY_FLAG = "--user-data-dir="
_OURS = "leasekeeper.browsers.keeper"
_WRAPPER = "/bin/keeper"


def users_of(user_data_dir: str) -> list[int]:
    """Processes whose command line names this directory, except keepers and their wrapper shells."""
    wanted = os.path.realpath(user_data_dir)
    return [pid for pid in _pids() if _uses(pid, wanted)]


def family_of(session: int, user_data_dir: str) -> list[int]:
    """A browser's live processes: those in its session, and all others on its directory. Zombies do not count."""
    wanted = os.path.realpath(user_data_dir)
    return [pid for pid in _pids() if _session_of(pid) == session or _uses(pid, wanted)]


def members_of(session: int) -> list[int]:
    """The live processes of a session."""
    return [pid for pid in _pids() if _session_of(pid) == session]


def own_processes() -> list[int]:
    """All processes of this user, except this one."""
    found = []
    for pid in _pids():
        try:
            if os.stat(f"/proc/{pid}").st_uid == os.geteuid():  # noqa: PTH116 - pathlib is not loaded here
                found.append(pid)
        except OSError:
            continue
    return found


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in ("Z", "X")


def has_files_in(pid: int, user_data_dir: str) -> bool:
    """Whether the process has a file open below the directory. True if we may not see its files."""
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
    return any(os.path.realpath(os.path.join(_working_directory(pid), name)) == wanted for name in named)


def _working_directory(pid: int) -> str:
    """The working directory of a process, for its relative paths; `/` if it cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return "/"


def _session_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[3])


def _stat(pid: int) -> list[str] | None:
    """State, parent, group, session and so on. The program's name before them may contain anything, even brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None
