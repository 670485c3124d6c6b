"""A profile's directory in the hands of another program, under a direct lease: locked, fenced, sealed at the end.

The program opens its own browser, so nobody stops that one for it. But no worker gets in meanwhile, a late program does
not get in at all, and what the program did under its lease does not count as manual use.
"""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from leasekeeper.browsers.checkout import (
    Condition,
    claim_directory,
    directory_of,
    fingerprint,
    inspect,
    keep_seal,
    last_engine,
    refuse_empty,
    refuse_foreign,
    seal,
)
from leasekeeper.browsers.keeper.fence import company_in, enclose
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.browsers.keeper.proof import read_exit_type
from leasekeeper.core.leases import Mode
from leasekeeper.errors import Fail
from leasekeeper.ports import Grant
from leasekeeper.runtime.clocks import boot_time

# Which browser the program will open is its own affair.
ANY_ENGINE = 1_000_000
LINGER_SECONDS = 3.0


class Borrowed:
    """The directory, until it is let go. Raises Fail if it is not to be had. Blocking: call it from a thread."""

    def __init__(self, grant: Grant, data_dir: Path) -> None:
        lease = grant.lease
        if lease.mode is Mode.SHARED:
            raise Fail("ACTION_NOT_ALLOWED", "a directory is for one browser: use an exclusive lease for it")
        self.path = claim_directory(directory_of(grant.profile, data_dir))
        seen = inspect(self.path, engine=ANY_ENGINE)
        refuse_foreign(self.path, token=lease.token, run_id=lease.run_id)
        refuse_empty(self.path, opened_by=grant.engine)
        self.manual_use = seen.words
        self._token = lease.token
        self._sealed = seen.condition is not Condition.UNSEALED
        try:
            self._lock: int | None = enclose(str(self.path), lease.token, lease.lease_id, lease.run_id)
        except Refused as refused:
            reason = "PROFILE_IN_USE_ELSEWHERE" if refused.reason == "STALE_TOKEN" else refused.reason
            raise Fail(reason, refused.message) from refused
        self._before = fingerprint(self.path)

    @property
    def engine(self) -> int | None:
        """The version of the browser that used it last."""
        return last_engine(self.path)

    def accept(self) -> None:
        """What a person changed was told: from here on the directory is as it should be."""
        seal(self.path)
        self._sealed = True

    def untouched(self) -> bool:
        """Whether nothing has changed in it since. Then what was remembered of it before still counts."""
        if fingerprint(self.path) != self._before:
            return False
        if self._sealed:
            with suppress(OSError):  # at worst a change by hand is not noticed
                keep_seal(self.path, self._token)
        return True

    def seal(self) -> str:
        """Remember it as it is now. Returns what speaks against that; empty if nothing does."""
        until = boot_time() + LINGER_SECONDS
        while (company := company_in(str(self.path))) is not None and boot_time() < until:
            time.sleep(0.05)  # waits: a browser's processes outlive it for a moment, and tell nobody
        if company is not None:
            return company
        exit_type = read_exit_type(str(self.path / "Default" / "Preferences"))
        if exit_type not in (None, "Normal"):
            return f"the profile's exit_type is {exit_type}, not Normal"
        try:
            seal(self.path)
        except OSError as error:
            return f"{self.path} cannot be written to: {error.strerror}"
        return ""

    def let_go(self) -> None:
        """Let others in. May be called twice."""
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # also for a child that was forked meanwhile
            os.close(self._lock)
            self._lock = None
