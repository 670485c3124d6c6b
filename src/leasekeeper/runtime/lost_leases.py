"""Ends and resolves expired leases when somebody requests their profile: where only scripts run, there is no sweeper.

The rules are the sweeper's: the same check of the clock, the same reports of this machine's keepers.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leasekeeper.config import Config
from leasekeeper.core.leases import Lease
from leasekeeper.core.readiness import Blocked
from leasekeeper.errors import Forbidden, NotFound, ProfileBusy
from leasekeeper.ports import Grant, LeaseRequest, Resolution, Store
from leasekeeper.wording.missing import no_profile_text

if TYPE_CHECKING:
    from leasekeeper.runtime.lost_runs import LostRunReports
    from leasekeeper.runtime.sweeper import Sweeper

# An expired lease may be what takes the profile, its account's key, or the pool's last place.
_BY_LEASES: Final = (Blocked.PROFILE_LEASE, Blocked.CAPACITY)
_BY_STATE: Final = (Blocked.PROFILE_STATE, Blocked.REVIEW_REQUIRED)


class LostLeases:
    """Leases profiles, and first ends and resolves expired or lost leases that block them."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._known: tuple[Sweeper, LostRunReports] | None = None

    async def acquire(self, request: LeaseRequest) -> Grant:
        """Lease the profile. If an expired or lost lease blocks it, end and resolve that one first.

        Raises NotFound, which names the store that has no such profile.
        Raises ProfileBusy if the profile is still not free: the holder is alive, the lock-delay has not passed, or the
        release policy gave the profile to a person.
        """
        try:
            return await self._store.acquire(request)
        except NotFound as missing:
            raise NotFound(
                no_profile_text(request.profile_id, self._config.store), what=missing.what, id=missing.id
            ) from None
        except ProfileBusy as busy:
            if not await self._resolve(request, busy):
                raise
        return await self._store.acquire(replace(request, again=True))

    async def _resolve(self, request: LeaseRequest, busy: ProfileBusy) -> bool:
        """End and resolve what blocks this request. Returns whether something changed."""
        # A profile that a person took out of rotation may have an ending that is not resolved, as a stale one has.
        if busy.reason not in _BY_LEASES and (busy.reason not in _BY_STATE or busy.until_at is None):
            return False
        sweeper, reports = await self._prepare()
        reading, _ = await sweeper.check_clock()
        if busy.until_at is not None and reading.store < busy.until_at:
            return False
        await sweeper.end_overdue_browsers()
        try:
            expired = await self._store.expire(seen=reading.store)
        except Forbidden:
            return False  # a worker's token is not allowed to: its server expires leases itself
        lost = (await self._store.why(profile_id=request.profile_id)).unresolved
        return await self._resolve_lost(sweeper, reports, list(lost)) or bool(expired)

    async def resolve_all(self) -> bool:
        """End and resolve every expired or lost lease. Returns whether something changed."""
        sweeper, reports = await self._prepare()
        reading, _ = await sweeper.check_clock()
        expired = await self._store.expire(seen=reading.store)
        lost = await self._store.unresolved()
        return await self._resolve_lost(sweeper, reports, lost) or bool(expired)

    async def _resolve_lost(self, sweeper: "Sweeper", reports: "LostRunReports", lost: list[Lease]) -> bool:
        """Resolve these by this machine's reports or their launchers' answers. Returns whether something changed."""
        known = await sweeper.without_askable(lost)
        found = [Resolution(lease_id=lease.lease_id, facts=await reports.facts(lease)) for lease in known]
        resolved = await self._store.resolve(found)
        return bool(await sweeper.launchers.ask(await sweeper.launchers.askable(lost)) or resolved)

    async def _prepare(self) -> "tuple[Sweeper, LostRunReports]":
        """The sweeper and its reports, created when first needed: most requests meet no lost lease. From then on its
        clock is compared with the store's."""
        from leasekeeper.evidence.places import open_place
        from leasekeeper.runtime.lost_runs import LostRunReports
        from leasekeeper.runtime.sweeper import Sweeper

        if self._known is None:
            reports = LostRunReports(Path(self._config.browsers.data_dir), open_place(self._config.browsers))
            self._known = Sweeper(self._store, self._config, reports=reports), reports
            await self._known[0].check_clock()
        return self._known
