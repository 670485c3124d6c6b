"""Warm hand-over: the next job of a profile goes on in the browser that is open, under a lease and token of its own."""

import logging
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from leasekeeper.app import App
from leasekeeper.core.settle import Ending
from leasekeeper.errors import LeasekeeperError, StoreError, safe_str
from leasekeeper.ports import ClaimRequest, Grant, HandedOver, Store
from leasekeeper.runtime.browser_launches import run_mode, terms_of
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.endings import Outcome
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.runtime.opening import BrowserOpener, Opened
from leasekeeper.runtime.run_state import RunState
from leasekeeper.runtime.shutdown import Shutdown
from leasekeeper.threads import run_in_thread

_LOG = logging.getLogger(__name__)

IDLE_POLL = timedelta(seconds=0.5)


class WarmHandOver:
    """Finds the next run of an open browser, and puts the browser under its lease."""

    def __init__(
        self, app: App, store: Store, opener: BrowserOpener, ledger: Ledger, stop: Shutdown, request: ClaimRequest
    ) -> None:
        self._app = app
        self._store = store
        self._opener = opener
        self._ledger = ledger
        self._stop = stop
        self._request = request

    def possible(self, current: RunState, outcome: Outcome) -> bool:
        """Whether the browser of this run may serve another: it completed, left nothing behind, and is not too old."""
        opened, config, grant = current.opened, self._opener.config, current.grant
        return (
            opened is not None
            and outcome.reason is None
            and current.task.warm
            and grant.profile.warm
            and not opened.throwaway
            and not opened.browser.over
            and opened.session.clean
            and "no_screenshot" not in current.evidence.notes
            and not self._stop.asked.is_set()
            and opened.runs < config.warm_runs
            and boot_time() - opened.opened_at < config.warm_age.total_seconds()
        )

    async def nothing_left(self, current: RunState, opened: Opened) -> bool:
        """Close the pages of this run, with their handlers, and prove that nothing else of it can act any more."""
        run_id = current.grant.lease.run_id
        try:
            await opened.session.leave_pages()
            kept = await opened.session.kept_reference()
        except Exception as error:  # noqa: BLE001 - whatever it is, a browser that may be in use is closed
            _LOG.info("run %s: no hand-over: not all of its pages are closed: %s", run_id, safe_str(error))
            return False
        if kept is not None:
            _LOG.info("run %s: no hand-over: its task kept a %s", run_id, kept)
        return kept is None and opened.session.clean

    async def next_grant(self, current: RunState, opened: Opened, ending: Ending) -> tuple[Grant, float] | None:
        """Settle this run and claim the next job of its profile, in one commit. Returns the grant, and when it was
        requested.

        Returns None if there is no next job within `warm_idle`: then this run is not settled. Also None if the ending
        was refused.
        """
        idle = self._opener.config.warm_idle
        until = boot_time() + idle.total_seconds()
        while True:
            sent_at = boot_time()
            handed = await self._settle_and_claim(current, opened, ending)
            if handed is not None or boot_time() >= until or self._stop.asked.is_set():
                break
            with suppress(StoreError):
                await self._store.wait(self._request.pool, min(IDLE_POLL, idle))
        return None if handed is None or handed.grant is None else (handed.grant, sent_at)

    async def _settle_and_claim(self, current: RunState, opened: Opened, ending: Ending) -> HandedOver | None:
        """Try once to settle this run and claim the next. While this runs, renewal is paused and the browser detached
        from the old lease, so that the end of that lease does not reach the browser."""
        tasks = tuple(t.name for t in self._app.tasks.values() if t.warm and t.sync == opened.sync)
        request = replace(self._request, limit=1, engine=opened.browser.info.engine)
        current.guard.detach()
        await current.guard.kept.pause_renewal()
        try:
            handed = await self._store.hand_over(ending, request, among=tasks)
        except LeasekeeperError as error:
            _LOG.warning("run %s: no hand-over: %s", current.grant.lease.run_id, error)
            handed = None
        if handed is None:
            current.guard.kept.resume_renewal()
            current.guard.attach(opened.browser)
        return handed

    async def take_over(self, current: RunState, following: RunState, opened: Opened) -> None:
        """Put the browser under the next run's lease. If that fails, the browser is ended, and the next run opens one
        of its own."""
        lease = following.grant.lease
        await run_in_thread(self._ledger.pass_on, current.grant.lease, lease)
        await run_in_thread(current.evidence.discard)
        _LOG.info(
            "run %s of %s: completed, the next is run %s", current.grant.lease.run_id, lease.profile_id, lease.run_id
        )
        following.final_url = current.final_url
        if not _same_browser(current.grant, following.grant):
            following.inherit(await self._opener.close_browser(opened))
            return
        opened.runs += 1
        try:
            await opened.browser.hand_over(terms_of(following.guard, self._ledger.runs_dir / lease.run_id))
            following.guard.attach(opened.browser)
            await opened.session.begin_recording_anew()
        except Exception as error:  # noqa: BLE001 - whatever it is, a browser that is not under the lease must end
            _LOG.warning("run %s: the browser could not be handed over: %s", lease.run_id, error)
            following.guard.detach()
            following.inherit(await self._opener.close_browser(opened, revoke="the hand-over failed"))
        else:
            following.final_url = None
            following.opened = opened


def _same_browser(before: Grant, after: Grant) -> bool:
    """Whether both grants would open the same browser: the fleet may have changed in between."""
    return (before.profile, before.proxy, run_mode(before)) == (after.profile, after.proxy, run_mode(after))
