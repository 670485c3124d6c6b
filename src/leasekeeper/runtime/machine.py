"""Whether this machine can run jobs. While it cannot (disk full, no browser, too many processes), the worker gives jobs
back uncounted and claims none; it checks again with backoff. Which errors are the machine's is a table in `core`.
"""

import asyncio
import errno
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from leasekeeper.browsers.data_directory import PROBE, claim_data_dir, try_data_dir
from leasekeeper.browsers.empty_directories import ProfilesMissing
from leasekeeper.browsers.finding import version_of
from leasekeeper.core.machine import Trouble, trouble_of
from leasekeeper.errors import BrowserNotFound, InputError, safe_str
from leasekeeper.evidence.delivery import EvidenceNotDelivered
from leasekeeper.evidence.files import EvidenceNotSaved
from leasekeeper.evidence.redact import MAX_URL, cut
from leasekeeper.evidence_port import Evidence
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)

FIRST_CHECK_SECONDS = 5.0
MAX_CHECK_SECONDS = 300.0
MAX_CHAIN: Final = 10
# No run starts with less free disk space than this: a browser and its evidence need it.
MIN_FREE_BYTES = 16 * 1024 * 1024
PROBE_FILES: Final = 64
SPAWN_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwell:
    """What is wrong with the machine: `message` for people, `path` (where it went wrong) for the next check."""

    trouble: Trouble
    path: Path
    message: str
    since: float
    missing: ProfilesMissing | None = None


class Machine:
    """The health of this machine. Jobs and sessions of a worker share one.

    `browser` returns the browser's program, or None until it is known. `place`: where evidence is delivered.
    """

    def __init__(self, data_dir: Path, browser: Callable[[], Path | None], place: Evidence | None = None) -> None:
        self._data_dir = data_dir
        self._place = place
        self._browser = browser
        self._listeners: list[Callable[[], None]] = []
        self._delay = 0.0
        self._check_at = 0.0
        self.unwell: Unwell | None = None

    @property
    def on_trial(self) -> bool:
        """Whether the machine is well again, but no run has got a browser since: then claim one job at a time."""
        return self.unwell is None and self._delay > 0.0

    @property
    def seconds_to_check(self) -> float:
        return max(0.0, self._check_at - boot_time())

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` whenever the machine becomes unwell or well."""
        self._listeners.append(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        self._listeners.remove(on_change)

    def blame(self, error: BaseException | str) -> Unwell | None:
        """If the machine caused this error, mark it unwell and return what is wrong; else return None."""
        return self._mark(self._found(error))

    async def blame_for_opening(self, error: BaseException) -> Unwell | None:
        """The same for an error before the task: the browser, or one of the worker's own files, failed. If the error
        itself does not say that the machine is the cause, the data directory is tested, in a thread: the disk may hang.
        """
        found = self._found(error)
        if found is None:
            try:
                found = await run_in_thread(self._of_data_dir, error)
            except RuntimeError as no_thread:
                found = self._found(no_thread)
        return self._mark(found)

    def _mark(self, found: Unwell | None) -> Unwell | None:
        if found is None:
            return None
        if self.unwell is None:
            self._delay = min(self._delay * 2, MAX_CHECK_SECONDS) or FIRST_CHECK_SECONDS
            self._check_at = boot_time() + self._delay
            self.unwell = found
            _LOG.warning("this machine is unwell: %s; no browser is opened for %g s", found.message, self._delay)
            self._changed()
        return found

    def works(self) -> None:
        """A run has got its browser. A machine that is well is no longer on trial then."""
        if self.unwell is None:
            self._delay = 0.0

    def check_room(self) -> None:
        """Mark the machine unwell if its disk is nearly full: a task would run, and its evidence would be lost. Called
        before each claim and each lease."""
        with suppress(OSError):
            found = os.statvfs(self._data_dir)
            if found.f_bavail * found.f_frsize < MIN_FREE_BYTES:
                self.blame(OSError(errno.ENOSPC, "too little room for a run", str(self._data_dir)))

    async def check(self) -> None:
        """Test again what did not work. If it still does not, the next check comes later."""
        unwell = self.unwell
        if unwell is None:
            return
        try:
            if unwell.trouble is Trouble.NO_EVIDENCE and self._place is not None:
                await self._place.check()
            await run_in_thread(self._probe, unwell)
        except Exception as error:  # noqa: BLE001 - whatever it is, it does not work yet
            # Missing profiles are checked often: a person who clears one waits for this check.
            longest = MAX_CHECK_SECONDS if unwell.missing is None else FIRST_CHECK_SECONDS
            self._delay = min(self._delay * 2, longest)
            self._check_at = boot_time() + self._delay
            _LOG.warning("this machine is still unwell: %s (%s); checking in %g s", unwell.message, error, self._delay)
            return
        self.unwell = None
        seconds = boot_time() - unwell.since
        _LOG.info("this machine is well again after %.0f s (%s): browsers are opened", seconds, unwell.trouble)
        self._changed()

    async def check_until_well(self) -> None:
        """Check until the machine is well, for a process without a loop that does so."""
        while self.unwell is not None:
            await asyncio.sleep(self.seconds_to_check)
            await self.check()

    def _changed(self) -> None:
        for listener in list(self._listeners):
            listener()

    def _found(self, error: BaseException | str) -> Unwell | None:
        """What is wrong with the machine, by the first error in the chain of causes that is the machine's; None if none
        is."""
        if isinstance(error, str):
            return self._unwell(trouble_of(None, error), self._data_dir, error)
        chain = _chain(error)
        for each in chain:
            if isinstance(each, ProfilesMissing):
                found = self._unwell(Trouble.NO_PROFILES, self._data_dir, safe_str(each))
                return None if found is None else replace(found, missing=each)
            if isinstance(each, EvidenceNotDelivered):
                return self._unwell(Trouble.NO_EVIDENCE, self._data_dir, safe_str(each))
            if isinstance(each, BrowserNotFound):
                return self._unwell(Trouble.NO_BROWSER, self._data_dir, safe_str(each))
        paths = [Path(each.filename) for each in chain if isinstance(each, OSError) and isinstance(each.filename, str)]
        for each in chain:
            number = each.errno if isinstance(each, OSError) else None
            trouble = trouble_of(number, safe_str(each))
            if trouble is not None:
                return self._unwell(trouble, paths[0] if paths else self._data_dir, safe_str(each))
        return None

    def _of_data_dir(self, error: BaseException) -> Unwell | None:
        """After a failed launch: what is wrong with the data directory; None if it can be used. An evidence folder that
        could not be created proves it; otherwise the directory is tested, since one damaged profile directory fails in
        the same ways."""
        said = next((safe_str(each) for each in _chain(error) if isinstance(each, EvidenceNotSaved)), None)
        try:
            try_data_dir(self._data_dir)
        except InputError as wrong:
            said = wrong.message
        return None if said is None else self._unwell(Trouble.DATA_DIR_UNUSABLE, self._data_dir, said)

    def _unwell(self, trouble: Trouble | None, path: Path, text: str) -> Unwell | None:
        if trouble is None:
            return None
        message = trouble.value
        if trouble in (Trouble.DISK_FULL, Trouble.DISK_READ_ONLY):
            message += f" at {path}{_room(path)}"
        elif trouble is Trouble.NO_BROWSER:
            program = self._browser()
            if program is not None:
                path, message = program, f"{message} at {program}"
        return Unwell(trouble=trouble, path=path, message=cut(f"{message}: {text}", MAX_URL), since=boot_time())

    def _probe(self, unwell: Unwell) -> None:
        """Test on a small scale what a run needs. Raises if that fails."""
        program = self._browser()
        if unwell.trouble in (Trouble.DISK_FULL, Trouble.DISK_READ_ONLY, Trouble.DATA_DIR_UNUSABLE):
            claim_data_dir(self._data_dir)  # it may be missing: a volume was mounted since, or a folder was removed
        match unwell.trouble:
            case Trouble.DISK_FULL | Trouble.DISK_READ_ONLY:
                for folder in {_folder(unwell.path), self._data_dir}:
                    _write(folder)
            case Trouble.NO_BROWSER:
                if program is not None:  # else the next start looks for one
                    version_of(program)
            case Trouble.TOO_MANY_FILES:
                _open_files()
            case Trouble.NO_MEMORY | Trouble.TOO_MANY_PROCESSES:
                subprocess.run(  # noqa: S603 - the browser that the person chose
                    [str(program or "true"), "--version"], check=True, capture_output=True, timeout=SPAWN_SECONDS
                )
            case Trouble.NO_PROFILES:
                if unwell.missing is not None:
                    unwell.missing.check()
            case Trouble.DATA_DIR_UNUSABLE:
                try_data_dir(self._data_dir)
            case Trouble.NO_DISPLAY | Trouble.NO_EVIDENCE:
                pass  # a display is tested by the next launch, the place of evidence by its own check


def _chain(error: BaseException) -> list[BaseException]:
    """The error and its causes, the error first."""
    chain = [error]
    while len(chain) < MAX_CHAIN and (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    return chain


def _folder(path: Path) -> Path:
    """The path if it is a folder, else its nearest parent folder that exists."""
    return next((each for each in (path, *path.parents) if each.is_dir()), Path("/"))


def _room(path: Path) -> str:
    try:
        found = os.statvfs(_folder(path))
    except OSError:
        return ""
    mb = found.f_frsize / 1_000_000
    return f" ({found.f_bavail * mb:.1f} of {found.f_blocks * mb:.1f} MB free, {found.f_favail} inodes free)"


def _write(folder: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=PROBE) as file:
        file.write(b"\0" * MIN_FREE_BYTES)
        file.flush()
        os.fsync(file.fileno())


def _open_files() -> None:
    with ExitStack() as opened:
        for _ in range(PROBE_FILES):
            opened.enter_context(Path(os.devnull).open("rb"))
