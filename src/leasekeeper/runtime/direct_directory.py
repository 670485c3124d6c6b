"""A profile's directory under a direct lease, for the program's own browser: locked, fenced, sealed at the end.

The program opens its own browser, so nobody stops that one for it. But no worker gets in meanwhile, a late program does
not get in at all, and what the program did under its lease does not count as manual use.
"""

import asyncio
import time
from pathlib import Path

from leasekeeper.browsers.keeper.directory import forget_tabs, other_user_of, take_directory
from leasekeeper.browsers.keeper.fence_file import unlock_directory
from leasekeeper.browsers.keeper.orders import STALE_TOKEN, Refused
from leasekeeper.browsers.keeper.proof import read_exit_type
from leasekeeper.browsers.keeper.seal import fingerprint, keep_seal, seal_directory
from leasekeeper.browsers.profile_directory import (
    claim_directory,
    directory_of,
    inspect,
    last_engine,
    refuse_empty,
    refuse_foreign,
)
from leasekeeper.core.failures import Reason
from leasekeeper.core.leases import Mode
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.errors import Fail
from leasekeeper.ports import Grant
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.threads import run_in_thread

# Which browser the program opens is not known.
ANY_ENGINE = 1_000_000
LINGER_SECONDS = 3.0


class DirectDirectory:
    """The directory, until `release`. Raises Fail if it cannot be used. Blocking: call it from a thread."""

    def __init__(self, grant: Grant, data_dir: Path, engine: int = ANY_ENGINE) -> None:
        lease = grant.lease
        if lease.mode is Mode.SHARED:
            raise Fail(Reason.ACTION_NOT_ALLOWED, "a directory is for one browser: use an exclusive lease for it")
        self.path = claim_directory(directory_of(grant.profile, data_dir))
        found = inspect(self.path, engine=engine)
        refuse_foreign(self.path, token=lease.token, run_id=lease.run_id)
        refuse_empty(self.path, opened_by=grant.engine)
        self.manual_use = found.manual_use_text
        self._token = lease.token
        self._lock: int | None
        try:
            self._lock, self._token_before = take_directory(str(self.path), lease.token, lease.lease_id, lease.run_id)
        except Refused as refused:
            reason = Reason.PROFILE_IN_USE_ELSEWHERE if refused.reason == STALE_TOKEN else refused.reason
            raise Fail(reason, refused.message) from refused
        self._before = fingerprint(str(self.path))

    @property
    def engine(self) -> int | None:
        """The version of the browser that used it last."""
        return last_engine(self.path)

    def forget_tabs(self) -> None:
        """Let the next browser start with an empty page. Not while one is open."""
        if other_user_of(str(self.path)) is None:
            forget_tabs(str(self.path))

    def accept(self) -> None:
        """What a person changed was recorded: from here on the directory is as it should be."""
        seal_directory(str(self.path), self._token)
        self._token_before = self._token

    def untouched(self) -> bool:
        """Whether nothing has changed in it since. Then its seal still counts."""
        if fingerprint(str(self.path)) != self._before:
            return False
        keep_seal(str(self.path), self._token, self._token_before)
        return True

    def seal(self) -> str:
        """Seal it as it is now. Returns why it cannot be sealed; empty if it was."""
        until = boot_time() + LINGER_SECONDS
        while (user := other_user_of(str(self.path))) is not None and boot_time() < until:
            time.sleep(0.05)  # waits: a browser's processes outlive it for a moment, and report nothing
        if user is not None:
            return user
        exit_type = read_exit_type(str(self.path / "Default" / "Preferences"))
        if exit_type not in (None, "Normal"):
            return f"the profile's exit_type is {exit_type}, not Normal"
        return "" if seal_directory(str(self.path), self._token) else f"{self.path} cannot be sealed"

    async def facts_at_end(self, facts: EndFacts, *, said_closed: bool) -> tuple[EndFacts, int | None]:
        """What the directory shows about the ending, and the version of the browser that the program opened in it."""
        if facts.browser is Browser.NOT_PROVEN:
            return facts, None
        if facts.browser is Browser.NONE and await run_in_thread(self.untouched):
            return facts, None
        if facts.browser is Browser.NONE:
            failing = "closed() was called without final_url" if said_closed else "closed() was not called"
        else:
            failing = await run_in_thread(self.seal)
        if failing:
            unproven = EndFacts(browser=Browser.NOT_PROVEN, failing_clause=failing, final_url=facts.final_url)
            return unproven, None
        return facts, await run_in_thread(lambda: self.engine)

    def release(self) -> None:
        """Let others in. May be called twice."""
        if self._lock is not None:
            unlock_directory(self._lock)
            self._lock = None


async def take_in_thread(grant: Grant, data_dir: Path, engine: int | None) -> DirectDirectory:
    """The directory. If the caller is cancelled while it is being taken, that takes a moment more, and it is let go."""
    taking = asyncio.ensure_future(run_in_thread(DirectDirectory, grant, data_dir, engine or ANY_ENGINE))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(_unwanted)
        await asyncio.wait({taking})
        raise


def _unwanted(taking: "asyncio.Future[DirectDirectory]") -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result().release()
