"""A profile's directory under a direct lease, for the program's own browser: locked, fenced, sealed at the end.

The program opens its own browser, and Leasekeeper cannot stop it. But no worker gets the directory meanwhile, a program
with an older fencing token is refused, and changes under the lease do not count as manual use.
"""

import asyncio
from pathlib import Path

from leasekeeper.browsers.locked_directory import take
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
from leasekeeper.threads import run_in_thread

# Newer than any version: which browser the program opens is not known.
ANY_ENGINE = 1_000_000


class DirectDirectory:
    """The directory, locked until `taken` is released. Creating this raises Fail if it cannot be used, and blocks."""

    def __init__(self, grant: Grant, data_dir: Path, engine: int = ANY_ENGINE) -> None:
        lease = grant.lease
        if lease.mode is Mode.SHARED:
            raise Fail(Reason.ACTION_NOT_ALLOWED, "a directory is for one browser: use an exclusive lease for it")
        self.path = claim_directory(directory_of(grant.profile, data_dir))
        found = inspect(self.path, engine=engine)
        refuse_foreign(self.path, token=lease.token, run_id=lease.run_id)
        refuse_empty(self.path, opened_by=grant.engine)
        self.manual_use = found.manual_use_text
        self.taken = take(self.path, lease)

    @property
    def engine(self) -> int | None:
        """The major version of the browser that used it last."""
        return last_engine(self.path)

    async def facts_at_end(self, facts: EndFacts, *, said_closed: bool) -> tuple[EndFacts, int | None]:
        """The facts of the ending, as the directory shows them, and the version of the browser that the program used
        (None if the close is not proven)."""
        if facts.browser is Browser.NOT_PROVEN:
            return facts, None
        if facts.browser is Browser.NONE and await run_in_thread(self.taken.give_back_unchanged):
            return facts, None
        if facts.browser is Browser.NONE:
            failing = "closed() was called without final_url" if said_closed else "closed() was not called"
        else:
            failing = await run_in_thread(self.taken.seal)
        if failing:
            unproven = EndFacts(browser=Browser.NOT_PROVEN, failing_clause=failing, final_url=facts.final_url)
            return unproven, None
        return facts, await run_in_thread(lambda: self.engine)


async def take_in_thread(grant: Grant, data_dir: Path, engine: int | None) -> DirectDirectory:
    """Take the directory in a thread. If the caller is cancelled meanwhile, wait for the thread, then release it."""
    taking = asyncio.ensure_future(run_in_thread(DirectDirectory, grant, data_dir, engine or ANY_ENGINE))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        taking.add_done_callback(_release_taken)
        await asyncio.wait({taking})
        raise


def _release_taken(taking: "asyncio.Future[DirectDirectory]") -> None:
    if not taking.cancelled() and taking.exception() is None:
        taking.result().taken.release()
