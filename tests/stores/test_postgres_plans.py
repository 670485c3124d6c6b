"""How PostgreSQL finds the next lane in tables that were just filled: without statistics, by index, each lane once."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg

from leasekeeper.core.accounts import Account
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, ProfileId, WorkerId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.profiles import Profile
from leasekeeper.core.workers import WorkerReport
from leasekeeper.stores import migrate, open_store
from leasekeeper.stores.postgres import engine
from leasekeeper.stores.sql.statements import load

PROFILES = 300
WINDOW = 16
WANTED = {
    "pool": "default",
    "worker": "w1",
    "tasks": ["visit"],
    "homes": ["", "*", "rack1"],  # as a worker asks that says its machine
    "engine": 140,
    "window": WINDOW,
    "limit": 1,
}


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


async def test_a_claim_reads_a_few_lanes_of_a_table_without_statistics(postgres_url: str) -> None:
    await migrate(postgres_url)
    store = await open_store(postgres_url)
    try:
        names = [f"p{n:03}" for n in range(PROFILES)]
        profiles = {name: Profile(profile_id=ProfileId(name), account_id=AccountId("shop")) for name in names}
        await store.apply(
            Fleet(accounts={"shop": Account(account_id=AccountId("shop"))}, profiles=profiles), actor="test"
        )
        await store.report(WorkerReport(worker_id=WorkerId("w1"), incarnation="i", pool="default", tasks=("visit",)))
        await store.submit([JobSpec(task="visit", profile_id=ProfileId(name)) for name in names])
    finally:
        await store.close()
    statement = re.sub(r"(?<!:):(\w+)", r"%(\1)s", load("leasekeeper.stores.postgres", "reads.sql")["lock_ready"])
    options = f"-c search_path=leasekeeper {engine._WRITER_OPTIONS}"
    with psycopg.connect(postgres_url, options=options) as connection:
        row = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", WANTED).fetchone()
    assert row is not None
    reads = [node for node in nodes(row[0][0]["Plan"]) if node.get("Relation Name") == "lanes"]
    assert reads
    lanes_read = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in reads
    )
    assert lanes_read <= 4 * WINDOW
