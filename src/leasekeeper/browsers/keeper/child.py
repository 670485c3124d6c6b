"""A local browser, a child process of the keeper: takes its directory, starts it with a pipe, stops it, proves its end.

The browser runs in a process session of its own. Knows no deadline and no report.
"""

import fcntl
import os
import time

from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.directory import clear_singletons, forbid_debugging, forget_tabs, take_directory
from leasekeeper.browsers.keeper.fast_imports import signals
from leasekeeper.browsers.keeper.features import merge_features
from leasekeeper.browsers.keeper.fence_file import record_token
from leasekeeper.browsers.keeper.orders import BAD_ORDERS, Orders, Refused
from leasekeeper.browsers.keeper.processes import DIRECTORY_FLAG, family_of
from leasekeeper.browsers.keeper.reached import Channel, ReachedBrowser
from leasekeeper.browsers.keeper.reasons import BROWSER_LAUNCH_FAILED, PROFILE_IN_USE_ELSEWHERE

TYPE_CHECKING = False  # the typing module would cost each launch 5 ms
if TYPE_CHECKING:
    from leasekeeper.browsers.keeper.capture import Cdp

PIPE_BYTES = 1024 * 1024
SINGLETON_EXIT = 21
_SAFE_FD = 100  # above the descriptors 3 and 4 that the browser expects its pipe on
_CHECK_SECONDS = 0.003
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGPIPE", "SIGCHLD")


def start_child(orders: Orders, arguments: list[str]) -> "ChildBrowser":
    """Take the directory and start the browser in it. Raises Refused; then no process and no lock is left."""
    check_arguments(arguments, orders.user_data_dir)
    lock, before = take_directory(orders.user_data_dir, orders.token, orders.lease_id, orders.run_id)
    try:
        forget_tabs(orders.user_data_dir)
        forbid_debugging(orders.user_data_dir)
        pid, to, out, watch = _launch(orders.browser, merge_features(arguments), lock)
    except Refused:
        from leasekeeper.browsers.keeper.seal import keep_seal  # a launch that works does not need it

        keep_seal(orders.user_data_dir, orders.token, before)
        os.close(lock)
        raise
    return ChildBrowser(pid, to, out, watch, orders, _profile_folder(arguments), lock, before)


def check_arguments(arguments: list[str], user_data_dir: str) -> None:
    """Raise Refused for a command line with another directory, or with a debugging port, which bypasses the keeper."""
    directories = [_value_of(argument) for argument in arguments if argument.startswith(DIRECTORY_FLAG)]
    if len(directories) != 1 or os.path.realpath(directories[0]) != os.path.realpath(user_data_dir):
        raise Refused(BAD_ORDERS, f"the browser was to be started on {directories}, the orders say {user_data_dir}")
    if any(_is_flag(argument, "--remote-debugging-port") for argument in arguments):
        raise Refused(BAD_ORDERS, "--remote-debugging-port would open a way around the lease: leave it out")
    if not any(_is_flag(argument, "--remote-debugging-pipe") for argument in arguments):
        raise Refused(BAD_ORDERS, "--remote-debugging-pipe is missing: a keeper is launched by Playwright, not by hand")


class ChildBrowser(ReachedBrowser):
    """The browser's processes and its directory. `before` is the directory's token before this lease."""

    def __init__(
        self, pid: int, to: int, out: int, watch: int, orders: Orders, folder: str, lock: int, before: int | None
    ) -> None:
        super().__init__(pid, Channel(to), Channel(out), watch)
        self._user_data_dir = orders.user_data_dir
        self._profile_folder = folder
        self._token = orders.token
        self._lock = lock
        self._before = before
        self._reaped = False
        self._stored = True

    def break_off(self) -> bytes:
        """Return bytes that make the unfinished command invalid, so that the browser ignores it."""
        return b"!\0"

    def take_lease(self, token: int, lease_id: str, run_id: str) -> None:
        record_token(self._user_data_dir, token, lease_id, run_id)
        self._token = token

    def gone(self) -> bool:
        """Whether the main process has ended. The first call after its end records its exit code or signal."""
        if not self._reaped:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._reaped = True
                code = os.waitstatus_to_exitcode(status)
                self.exit_code, self.signal = (code, None) if code >= 0 else (None, -code)
        return self._reaped

    def before_close(self, cdp: "Cdp", until: float, *, visited: bool) -> None:
        from leasekeeper.browsers.keeper.storage_flush import FLUSH_SECONDS, flush_storage  # a launch does not need it

        self._stored = flush_storage(cdp, min(until, boot_time() + FLUSH_SECONDS), visited=visited)

    def interrupt(self) -> None:
        """Send SIGINT, the only signal on which Chromium saves its session."""
        if not self.gone():
            os.kill(self.pid, signals.SIGINT)

    def kill(self) -> None:
        """Send SIGKILL to all its processes, the main process first so that it starts no others."""
        if not self.gone():
            _kill(self.pid)
        for pid in self._family():
            _kill(pid)

    def all_gone(self, until: float) -> bool:
        killed_until = 0.0
        while self._family():
            now = boot_time()
            if now >= until:
                self.kill()
                killed_until = killed_until or now + 5.0
                if now >= killed_until:
                    return False
            self.gone()
            time.sleep(_CHECK_SECONDS)
        return True

    def prove(self, stopped_by: str, all_gone: bool) -> dict[str, object]:
        from leasekeeper.browsers.keeper.proof import prove

        code, signal = self.exit_code, self.signal
        stored = self._stored
        return prove(self._user_data_dir, self._profile_folder, stopped_by, code, signal, all_gone, stored=stored)

    def failed_start(self) -> tuple[str, str]:
        if self.exit_code == SINGLETON_EXIT:
            return PROFILE_IN_USE_ELSEWHERE, "the browser found its profile directory in use by another one"
        ended = f"signal {self.signal}" if self.signal is not None else f"code {self.exit_code}"
        return BROWSER_LAUNCH_FAILED, f"the browser ended at once ({ended})"

    def clean_up(self, proof: dict[str, object], *, spoke: bool) -> bool:
        """Remove Chromium's locks. Seal the directory after a proven close, or keep its seal if nothing was changed."""
        from leasekeeper.browsers.keeper.proof import is_untouched
        from leasekeeper.browsers.keeper.seal import keep_seal, seal_directory

        untouched = not spoke and is_untouched(self._user_data_dir, self._profile_folder)
        clear_singletons(self._user_data_dir)
        if not proof["failing_clause"]:
            seal_directory(self._user_data_dir, self._token)
        elif untouched:
            keep_seal(self._user_data_dir, self._token, self._before)
        return untouched

    def release(self) -> None:
        os.close(self._lock)

    def _family(self) -> list[int]:
        """Its processes that are still alive, child processes included."""
        return family_of(self.pid, self._user_data_dir)


def _launch(program: str, arguments: list[str], lock: int) -> tuple[int, int, int, int]:
    """Start the browser with a pipe and the directory's lock. Raises Refused; then no process of it is left.

    Returns its process id, the descriptors to write to and read from, and its pidfd, which becomes readable at its end.
    """
    try:
        their_in, to = os.pipe2(os.O_CLOEXEC)
        out, their_out = os.pipe2(os.O_CLOEXEC)
        failure, failed = os.pipe2(os.O_CLOEXEC)
        for end in (to, out):
            os.set_blocking(end, False)
            _enlarge_pipe(end)
        pid = os.fork()
    except OSError as error:
        raise Refused(BROWSER_LAUNCH_FAILED, f"cannot start {program}: {error}") from None
    if pid == 0:
        _exec_browser(program, arguments, their_in, their_out, lock, failed)
    for end in (their_in, their_out, failed):
        os.close(end)
    problem = os.read(failure, 4096)  # returns when the child has become the browser, or could not
    os.close(failure)
    if problem:
        os.waitpid(pid, 0)
        raise Refused(BROWSER_LAUNCH_FAILED, f"cannot start {program}: {problem.decode(errors='replace')}")
    try:
        return pid, to, out, os.pidfd_open(pid)
    except OSError as error:
        _kill(pid)
        os.waitpid(pid, 0)
        raise Refused(BROWSER_LAUNCH_FAILED, f"cannot watch {program}, pidfd_open failed: {error}") from None


def _exec_browser(program: str, arguments: list[str], read: int, write: int, lock: int, failed: int) -> None:
    """Runs in the child process, after fork: set up the descriptors and exec the browser. Never returns."""
    try:
        os.setsid()
        for name in _SIGNALS:
            signals.signal(getattr(signals, name), signals.SIG_DFL)
        read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _SAFE_FD) for end in (read, write))
        failed = fcntl.fcntl(failed, fcntl.F_DUPFD_CLOEXEC, _SAFE_FD)
        os.set_inheritable(fcntl.fcntl(lock, fcntl.F_DUPFD, _SAFE_FD), True)
        os.dup2(read, 3)
        os.dup2(write, 4)
        os.execv(program, [program, *arguments])  # noqa: S606 - the browser of the orders, no shell wanted
    except BaseException as error:  # noqa: BLE001 - the parent process gets any error
        os.write(failed, str(error).encode()[:4096])
    finally:
        os._exit(127)


def _enlarge_pipe(pipe: int) -> None:
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        return  # above this user's limit: the default size works too


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signals.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # it has ended; or it is another user's, and so not the browser's


def _profile_folder(arguments: list[str]) -> str:
    named = [_value_of(argument) for argument in arguments if argument.startswith("--profile-directory=")]
    return named[-1] if named else "Default"


def _value_of(argument: str) -> str:
    return argument.partition("=")[2]


def _is_flag(argument: str, name: str) -> bool:
    return argument == name or argument.startswith(name + "=")
