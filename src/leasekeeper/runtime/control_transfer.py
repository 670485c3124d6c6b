"""Passes control of an open browser on: the old run ends and the new one begins in one commit, the browser stays open.

The order is the promise: first the old lease is detached from the browser, then the store grants the new lease, then
the keeper raises its fence to the new token. A failure after the grant ends the browser.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from leasekeeper.core.browsers import LeaseTerms
from leasekeeper.core.control import TransferRequest
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.driver_port import ClientRefused, RunningBrowser
from leasekeeper.errors import LeaseLost, StoreUnavailable
from leasekeeper.evidence.files import EvidenceNotSaved
from leasekeeper.ports import Grant, HandedOver, Store
from leasekeeper.runtime.browser_launches import terms_of
from leasekeeper.runtime.clocks import boot_time
from leasekeeper.runtime.devtools import DevTools, DevToolsError
from leasekeeper.runtime.evidence import RunEvidence
from leasekeeper.runtime.heartbeat import KeptLease
from leasekeeper.runtime.lease_guard import LeaseGuard
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.runtime.opening import BrowserOpener, Opened
from leasekeeper.threads import run_in_thread
from leasekeeper.wording import REFUSALS

_LOG = logging.getLogger(__name__)

READ_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A browser under its next lease."""

    grant: Grant
    guard: LeaseGuard
    evidence: RunEvidence


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOrder:
    """An order to pass the browser to another holder. `answer` is a future with what they get."""

    to: TransferRequest
    reason: str | None
    message: str
    answer: "asyncio.Future[Passed]"


async def pass_on(
    store: Store,
    opener: BrowserOpener,
    opened: Opened,
    guard: LeaseGuard,
    evidence: RunEvidence,
    ending: Ending,
    to: TransferRequest,
) -> Passed:
    """Put an open browser under another lease. Raises LeaseLost, Conflict or StoreError; it keeps its old lease then.

    If the keeper does not take over the new lease, the browser is ended: the new holder finds it gone.
    """
    browser, kept = opened.browser, guard.kept
    guard.detach()
    await kept.pause_renewal()
    sent_at = boot_time()
    facts = replace(ending.facts, browser=Browser.HANDED_OVER)
    try:
        handed = await _transfer(store, kept, replace(ending, facts=facts), to)
    except BaseException:
        kept.resume_renewal()
        guard.attach(browser)
        raise
    if handed.grant is None:
        guard.attach(browser)
        why = handed.settled.refused
        kept.lose(REFUSALS[why] if why else "its lease ended", why)
        kept.check()
    grant = handed.grant
    if grant is None:
        raise LeaseLost(f"lease {kept.lease.lease_id} is lost", lease_id=kept.lease.lease_id)
    following = guard.follow(grant.lease, sent_at)
    guard.release()
    ledger = Ledger(opener.data_dir)
    await run_in_thread(ledger.pass_on, kept.lease, grant.lease)
    await run_in_thread(evidence.discard)
    fresh = RunEvidence(ledger.runs_dir, grant.lease.run_id, place=opener.place, under=grant.lease.ref)
    with suppress(EvidenceNotSaved):  # it is noted there, and decides how the run ends
        await fresh.create()
    await _raise_fence(browser, following, terms_of(following, fresh.folder))
    _LOG.info(
        "profile %s: control passed from %s to %s, run %s to run %s",
        grant.lease.profile_id,
        kept.lease.worker_id,
        grant.lease.worker_id,
        kept.lease.run_id,
        grant.lease.run_id,
    )
    return Passed(grant=grant, guard=following, evidence=fresh)


async def _raise_fence(browser: RunningBrowser, guard: LeaseGuard, terms: LeaseTerms) -> None:
    try:
        await browser.hand_over(terms)
    except Exception as error:  # noqa: BLE001 - whatever it is, a browser that is not under its lease must end
        _LOG.warning("run %s: control could not be passed: %s", terms.run_id, error)
        browser.revoke("control could not be passed")
    else:
        guard.attach(browser)


async def _transfer(store: Store, kept: KeptLease, ending: Ending, to: TransferRequest) -> HandedOver:
    """Transfer the lease; retry until the holder's deadline. Renewal stays paused: an attempt without an answer may
    have been committed."""
    what = f"run {kept.lease.run_id}: control has not passed yet"
    while True:
        try:
            handed = await store.transfer(ending, to)
        except StoreUnavailable as error:
            kept.trouble.again(what, error)
        else:
            kept.trouble.over(what)
            return handed
        kept.check()
        await asyncio.sleep(kept.again_seconds)


@dataclass(frozen=True, slots=True)
class Seen:
    """The URL and a screenshot of a paused browser's page; None for what could not be read."""

    url: str | None = None
    screenshot: bytes | None = None


async def read_paused(browser: RunningBrowser) -> Seen:
    """Read the page of a paused browser, through a client of our own. What is not answered in time is None."""
    try:
        client = await browser.add_client()
    except ClientRefused:
        return Seen()
    devtools = DevTools(client, _ignore)
    reading = asyncio.ensure_future(devtools.read())
    found = Seen()
    try:
        with suppress(DevToolsError, TimeoutError, binascii.Error):
            async with asyncio.timeout(READ_SECONDS):
                targets = (await devtools.ask("Target.getTargets"))["targetInfos"]
                pages = [each for each in targets if each.get("type") == "page"]
                if not pages:
                    return found
                found = Seen(str(pages[0]["url"]))
                attached = await devtools.ask(
                    "Target.attachToTarget", {"targetId": pages[0]["targetId"], "flatten": True}
                )
                shot = await devtools.ask("Page.captureScreenshot", {"format": "png"}, str(attached["sessionId"]))
                found = replace(found, screenshot=base64.b64decode(shot["data"]))
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await client.close()
    return found


async def _ignore(_method: str, _params: Mapping[str, Any], _session: str) -> None:
    """Ignore an event."""


async def seen_evidence(opener: BrowserOpener, opened: Opened, evidence: RunEvidence) -> EndFacts:
    """Save final URL, screenshot and summaries of a run whose browser is paused; call it before the lease ends."""
    seen = await read_paused(opened.browser)
    if seen.screenshot is not None:
        evidence.save_soon("final.png", seen.screenshot)
    else:
        evidence.notes["no_screenshot"] = "the page gave none while control passed"
    evidence.notes.update(opened.session.recorder.summary())
    await evidence.saved()
    url = None if seen.url is None else opener.redactor.url(seen.url)
    return EndFacts(browser=Browser.HANDED_OVER, final_url=url, evidence_saved=evidence.unsaved is None)
