"""A profile's directory under a direct lease, for the program's own browser: locked, fenced, sealed at the end.

The program opens its own browser, so nobody stops that one for it. But no worker gets in meanwhile, a late program does
not get in at all, and what the program did under its lease does not count as manual use.
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

# Which browser the program opens is not known.
ANY_ENGINE = 1_000_000


class DirectDirectory:
    """The directory, `taken` until that is released. Raises Fail if it cannot be used. Blocks."""

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
        """The version of the browser that used it last."""
        return last_engine(self.path)

    async def facts_at_end(self, facts: EndFacts, *, said_closed: bool) -> tuple[EndFacts, int | None]:
        """What the directory shows about the ending, and the version of the browser that the program opened in it."""
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
        taking.result().taken.release()
