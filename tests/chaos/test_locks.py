"""Calls that meet take their locks in one order: the server never has to end one of them to let the other go on."""

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg import errors

from leasekeeper.ports import Resolution
from leasekeeper.stores.postgres.engine import PostgresEngine
from tests.chaos.stage import FOUND, REPORTED, a_fleet, a_held_call, a_job, a_stage


def test_two_sweepers_of_whom_one_has_a_report_do_not_wait_for_each_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[psycopg.Error] = []
    real = PostgresEngine._clean_up

    def after(engine: PostgresEngine, tx: Any, error: psycopg.Error, *counts: int) -> tuple[int, int]:
        seen.append(error)
        return real(engine, tx, error, *counts)

    async def story() -> None:
        async with a_stage(postgres_url, a_fleet(), [a_job()]) as stage:
            one, two, worker = [await stage.client(who) for who in ("one", "two", "worker")]
            grant = await worker.claim_one()
            stage.pass_time(60)
            await one.expire()
            stage.pass_time(15)
            plain, reported = [Resolution(lease_id=grant.lease.lease_id, facts=facts) for facts in (FOUND, REPORTED)]
            with a_held_call(stage.url, after="open_runs") as held:
                await held.while_held(one.store.resolve([plain]), two.store.resolve([reported]))

    monkeypatch.setattr(PostgresEngine, "_clean_up", after)
    asyncio.run(story())
    assert [error for error in seen if isinstance(error, errors.DeadlockDetected)] == []
