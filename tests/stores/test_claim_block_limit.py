"""How many lanes one transaction of a claim may block or park is bounded: it may run inside the event loop."""

import pytest

from leasekeeper.core.accounts import Account, Routing
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, ProfileId, WorkerId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.profiles import Lane, Profile
from leasekeeper.core.workers import WorkerReport
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import ClaimRequest
from leasekeeper.stores import migrate, open_store
from leasekeeper.stores.sql.claiming import BlockLimit, claim
from leasekeeper.stores.sql.store import MAX_BRIEF_BLOCKED, SqlStore

PROFILES = 200
REQUEST = ClaimRequest(worker_id=WorkerId("w1"), incarnation="w1-1", tasks=("visit",))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_brief_claim_parks_a_few_lanes_and_says_that_there_are_more(
    request: pytest.FixtureRequest, kind: str
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    await migrate(url)
    store = await open_store(url)
    assert isinstance(store, SqlStore)
    try:
        names = [f"p{n:03}" for n in range(PROFILES)]
        profiles = {name: Profile(profile_id=ProfileId(name), account_id=AccountId("shop")) for name in names}
        shop = Account(account_id=AccountId("shop"), routing=Routing.ACCOUNT)
        await store.apply(Fleet(accounts={"shop": shop}, profiles=profiles), actor="test")
        await store.report(WorkerReport(worker_id=WorkerId("w1"), incarnation="w1-1", pool="default", tasks=("visit",)))
        await store.submit([JobSpec(task="visit", profile_id=ProfileId(name)) for name in names])
        assert len(await store.claim(REQUEST)) == 1

        block_limit = BlockLimit(MAX_BRIEF_BLOCKED)
        assert await store._engine.change(lambda tx: claim(tx, store._ctx, REQUEST, block_limit)) == []
        lanes = (await store.find(Lane, limit=MAX_IN_PAGE)).items
        parked = [lane for lane in lanes if lane.waits_on is not None]
        assert 0 < len(parked) <= MAX_BRIEF_BLOCKED
        assert block_limit.unfinished

        assert await store.claim(REQUEST) == []
        lanes = (await store.find(Lane, limit=MAX_IN_PAGE)).items
        assert sum(lane.waits_on is not None for lane in lanes) == PROFILES - 1
    finally:
        await store.close()
