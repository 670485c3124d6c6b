"""Endings that look harmless: whatever a holder says about them, a profile in doubt does not go back into rotation."""

import pytest

from leasekeeper.core.failures import BelongsTo, Failure, ProfileRule, RetryRule
from leasekeeper.core.profiles import ReleasePolicy
from leasekeeper.core.settle import Browser, EndFacts
from tests.conformance.world import URL, NewWorld, profile

CAPTCHA = Failure("CAPTCHA", BelongsTo.ACCOUNT, RetryRule.YES, ProfileRule.REVIEW_REQUIRED)


async def test_a_browser_that_nobody_took_over_is_not_proven_closed(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        settled = await world.finish(grant, facts=EndFacts(browser=Browser.HANDED_OVER, final_url=URL))
        assert settled.profile_state == "stale"
        assert (await world.job(grant)).state == "completed"


@pytest.mark.parametrize(
    ("reason", "state"),
    [("PROFILE_CORRUPT", "quarantined"), ("SECURITY_PROMPT", "quarantined"), ("CAPTCHA", "review_required")],
)
async def test_what_was_found_before_the_start_blocks_the_profile_as_it_would_after(
    new_world: NewWorld, reason: str, state: str
) -> None:
    async with new_world() as world:
        grant = await world.run()
        settled = await world.finish(grant, reason, not_started=True, registered=CAPTCHA)
        assert (settled.job_state, settled.profile_state) == ("queued", state)
        assert (await world.job(grant)).attempt == 0


async def test_a_holder_cannot_write_the_report_of_its_keeper(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.RECOVER)) as world:
        grant = await world.run()
        await world.store.checkpoint(grant.lease.ref, "cart_full")
        doubtful = EndFacts(browser=Browser.NOT_PROVEN, final_url=URL)
        await world.finish(grant, facts=doubtful, evidence={"report": {"by": "me", "browser_dead": True}})
        world.advance(grant.lease.lock_delay_ms / 1000)
        (settled,) = await world.resolve(grant)
        assert settled.profile_state == "review_required"


async def test_a_job_that_was_given_back_from_a_browser_that_was_not_proven_closed(new_world: NewWorld) -> None:
    async with new_world(profile(release_policy=ReleasePolicy.REVIEW)) as world:
        grant = await world.run()
        facts = EndFacts(browser=Browser.NOT_PROVEN, failing_clause="it was killed", final_url=URL)
        settled = await world.finish(grant, not_started=True, facts=facts)
        assert (settled.job_state, settled.profile_state) == ("queued", "stale")
        await world.resolve(grant)
        lane = await world.lane()
        assert (lane.state, "was not proven closed" in lane.state_reason) == ("review_required", True)
        await world.clear()
        again = await world.take()
        assert again.job is not None
        assert (again.job.attempt, again.job.losses) == (1, 0)
