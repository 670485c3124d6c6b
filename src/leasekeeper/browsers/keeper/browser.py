"""The browser's process: started in a session of its own, watched, signalled, reaped. Knows no protocol, no lease."""

import fcntl
import os
import select
import time

from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.browsers.keeper.processes import family_of
from leasekeeper.browsers.keeper.quick import signals

PIPE_BYTES = 1024 * 1024
_SAFE_FD = 100  # above the descriptors 3 and 4 that the browser expects its pipe on
_LOOK_SECONDS = 0.003


class Browser:
    """A started browser and our ends of its pipe: `to` is where it reads, `out` is where it writes."""

    def __init__(self, pid: int, to: int, out: int, user_data_dir: str) -> None:
        self.pid = pid
        self.to = to
        self.out = out
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.watch = os.pidfd_open(pid)
        self._user_data_dir = user_data_dir
        self._reaped = False

    def gone(self) -> bool:
        """Whether the main process has ended; its status is kept when first seen."""
        if not self._reaped:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._reaped = True
                code = os.waitstatus_to_exitcode(status)
                self.exit_code, self.signal = (code, None) if code >= 0 else (None, -code)
        return self._reaped

    def interrupt(self) -> None:
        """SIGINT is the one signal on which Chromium saves what it knows."""
        if not self.gone():
            os.kill(self.pid, signals.SIGINT)

    def kill(self) -> None:
        """SIGKILL to everything that belongs to it, main process first so that it starts no more."""
        if not self.gone():
            _kill(self.pid)
        for pid in self.family():
            _kill(pid)

    def family(self) -> list[int]:
        """What is still alive of it, children included."""
        return family_of(self.pid, self._user_data_dir)

    def family_gone(self, until: float) -> bool:
        """Wait until nothing of it is alive; what lingers after `until` is killed. False if that did not help."""
        killed_until = 0.0
        while self.family():
            now = boot_time()
            if now >= until:
                self.kill()
                killed_until = killed_until or now + 5.0
                if now >= killed_until:
                    return False
            self.gone()
            time.sleep(_LOOK_SECONDS)
        return True


def launch(program: str, arguments: list[str], lock: int, user_data_dir: str) -> Browser:
    """Start the browser with a pipe of its own and the directory's lock. Raises Refused if there is no such program."""
    their_in, to = os.pipe2(os.O_CLOEXEC)
    out, their_out = os.pipe2(os.O_CLOEXEC)
    failure, failed = os.pipe2(os.O_CLOEXEC)
    for end in (to, out):
        os.set_blocking(end, False)
        _widen(end)
    pid = os.fork()
    if pid == 0:
        _become(program, arguments, their_in, their_out, lock, failed)
    for end in (their_in, their_out, failed):
        os.close(end)
    error = os.read(failure, 4096)  # returns when the child has become the browser, or could not
    os.close(failure)
    if error:
        os.waitpid(pid, 0)
        raise Refused("BROWSER_LAUNCH_FAILED", f"cannot start {program}: {error.decode(errors='replace')}")
    return Browser(pid, to, out, user_data_dir)


def _become(program: str, arguments: list[str], read: int, write: int, lock: int, failed: int) -> None:
    """In the child, between fork and exec. Never returns."""
    try:
        os.setsid()
        for number in (
            signals.SIGINT,
            signals.SIGTERM,
            signals.SIGHUP,
            signals.SIGQUIT,
            signals.SIGPIPE,
            signals.SIGCHLD,
        ):
            signals.signal(number, signals.SIG_DFL)
        read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _SAFE_FD) for end in (read, write))
        failed = fcntl.fcntl(failed, fcntl.F_DUPFD_CLOEXEC, _SAFE_FD)
        os.set_inheritable(fcntl.fcntl(lock, fcntl.F_DUPFD, _SAFE_FD), True)
        os.dup2(read, 3)
        os.dup2(write, 4)
        os.execv(program, [program, *arguments])  # noqa: S606 - the browser of the orders, no shell wanted
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        os.write(failed, str(error).encode()[:4096])
    finally:
        os._exit(127)


def _widen(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        return  # more than this user may have: the usual size does as well


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signals.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # gone, which is what was wanted; or not ours, and then not the browser's


def wait_readable(*descriptors: int, seconds: float) -> bool:
    """Whether one of them had something to say, or was closed, within the time."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
