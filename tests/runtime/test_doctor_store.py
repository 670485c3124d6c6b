"""`leasekeeper doctor` on real stores: down, old, new, ahead of its time, unswept, and with a week's history."""

import base64
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import config
from leasekeeper.core.accounts import Account, Routing
from leasekeeper.core.doctor.findings import Answer, Finding, Status, Verdict
from leasekeeper.core.events import Event, EventType, manual_use
from leasekeeper.core.ids import AccountId
from leasekeeper.core.policy import Policy
from leasekeeper.core.profiles import ManualUse
from leasekeeper.ports import Renewal, Store
from leasekeeper.runtime.doctor import ALL, EXAMINERS, Installation, examine, examine_site
from leasekeeper.stores import inspect, migrate, open_store
from leasekeeper.version import __version__
from leasekeeper.wording.doctor import todo_text
from tests.conformance.audit import audit
from tests.conformance.world import World, answered, new_world, profile
from tests.servers import closed_port

OK, WARN, FAIL, SKIP = Status.OK, Status.WARN, Status.FAIL, Status.SKIP
NEEDS_STORE = {"clock", "sweeper", "workers", "webhooks"} | {check.id for check in ALL if check.group != "installation"}
SECRET = "whsec_" + base64.b64encode(b"a secret of thirty-two bytes, ok").decode()


def site(url: str, tmp_path: Path, **settings: Any) -> Installation:
    loaded = config.load({}, store=url, data_dir=str(tmp_path / "data"), **settings)
    return Installation(loaded, environ={}, with_browser=False)


def site_of(world: World, tmp_path: Path, **settings: Any) -> Installation:
    """An installation whose store acts on the world's time."""
    made = site(world.url, tmp_path, **settings)

    async def opening(url: str, *, policy: Policy) -> Store:
        return await open_store(url, policy=policy, clock=world.clock)

    made.opening = opening
    return made


async def verdicts(made: Installation, *names: str) -> dict[str, Verdict]:
    """What the named checks say, or all."""
    wanted = [check for check in ALL if not names or check.id in names]
    return by_id(await examine_site(made, wanted))


def by_id(findings: list[Finding]) -> dict[str, Verdict]:
    return {finding.check.id: finding.verdict for finding in findings}


async def verdict(made: Installation, name: str) -> Verdict:
    return (await verdicts(made, name))[name]


def test_every_check_has_somebody_who_does_it() -> None:
    assert [check.id for check in ALL] == list(EXAMINERS)


async def test_a_sound_store_is_ok(store_url: str, tmp_path: Path) -> None:
    found = await verdicts(site(store_url, tmp_path))
    expected = {"settings": OK, "store": OK, "schema": OK, "clock": OK, "sweeper": OK, "workers": SKIP}
    assert {name: found[name].status for name in expected} == expected
    assert {v.status for v in found.values() if v.answer} == {OK}


async def test_a_server_that_is_down_fails_and_what_needs_it_is_skipped(tmp_path: Path) -> None:
    with closed_port() as port:
        found = await verdicts(site(f"postgresql://me:hush@127.0.0.1:{port}/fleet", tmp_path))
    assert found["store"].status is FAIL
    assert found["store"].facts["code"] == "STORE_UNAVAILABLE"
    assert found["schema"].status is SKIP
    assert {found[name].status for name in NEEDS_STORE} == {SKIP}
    assert "hush" not in str(found)


async def test_a_file_that_is_not_there_yet_is_not_made(sqlite_url: str, tmp_path: Path) -> None:
    found = await verdicts(site(sqlite_url, tmp_path), "store", "schema", "one_profile")
    assert {name: v.status for name, v in found.items()} == {"store": WARN, "schema": SKIP, "one_profile": SKIP}
    assert not list(tmp_path.glob("*"))  # noqa: ASYNC240 - one look at a small folder


async def test_a_file_of_something_else_fails(sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "leasekeeper.db").write_text("once upon a time " * 100)
    found = await verdict(site(sqlite_url, tmp_path), "store")
    assert (found.status, found.facts["code"]) == (FAIL, "STORE_ERROR")


@pytest.mark.parametrize(("version", "todo"), [(1, "Migrate the store"), (99, "Upgrade Leasekeeper")])
async def test_a_schema_of_another_version_fails_and_is_left_alone(
    sqlite_url: str, tmp_path: Path, version: int, todo: str
) -> None:
    await migrate(sqlite_url)
    connection = sqlite3.connect(tmp_path / "leasekeeper.db")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    found = await verdicts(site(sqlite_url, tmp_path))
    assert (found["store"].status, found["schema"].status) == (OK, FAIL)
    assert todo in todo_text(found["schema"])
    assert {found[name].status for name in NEEDS_STORE} == {SKIP}
    assert (await inspect(sqlite_url)).schema == version


async def test_a_database_without_tables_fails_and_is_left_alone(postgres_url: str, tmp_path: Path) -> None:
    assert (await verdict(site(postgres_url, tmp_path), "schema")).status is FAIL
    assert (await inspect(postgres_url)).schema == 0


@pytest.mark.parametrize(("hours", "status"), [(0, OK), (0.03, WARN), (-0.03, WARN), (1, FAIL)])
async def test_a_clock_that_is_wrong_is_seen(store_url: str, tmp_path: Path, hours: float, status: Status) -> None:
    made = site(store_url, tmp_path, clock_tolerance=60)

    async def opening(url: str, *, policy: Policy) -> Store:
        return await open_store(url, policy=policy, clock=lambda real: real + timedelta(hours=hours))

    made.opening = opening
    assert (await verdict(made, "clock")).status is status


async def test_a_store_that_goes_away_on_the_way_fails(sqlite_url: str, tmp_path: Path) -> None:
    await migrate(sqlite_url)
    made = site(sqlite_url, tmp_path)
    await (await made.store()).close()
    found = await verdicts(made, "store", "workers")
    assert (found["store"].status, found["workers"].status) == (OK, FAIL)


async def test_wrong_settings_are_a_finding() -> None:
    found = by_id(await examine(lambda: config.load({"LEASEKEEPER_LEASE_TTL": "soon"})))
    assert found.pop("settings").status is FAIL
    assert {v.status for v in found.values()} == {SKIP}


async def test_settings_say_where_they_come_from(sqlite_url: str, tmp_path: Path) -> None:
    made = site(sqlite_url, tmp_path)
    made.environ = {"LEASEKEEPER_LEASE_TTL": "90", "PATH": "/bin"}
    assert (await verdict(made, "settings")).facts["settings"] == {"lease_ttl": "environment"}


async def test_only_what_is_wanted_is_examined(sqlite_url: str, tmp_path: Path) -> None:
    reported: list[str] = []
    found = await examine(
        lambda: site(sqlite_url, tmp_path).config,
        only=["queue", "clock"],
        progress=lambda done, total, check: reported.append(f"{done} of {total}: {check.id}"),
    )
    assert [finding.check.id for finding in found][:2] == ["clock", "job_context"]
    assert len(found) == 10
    assert reported[1] == "1 of 10: job_context"


async def test_leases_that_nobody_sweeps_are_seen(store_url: str, tmp_path: Path) -> None:
    async with new_world(store_url, audit)() as world:
        await world.run()
        assert (await verdict(site_of(world, tmp_path), "sweeper")).status is OK
        world.advance(60 + 90)
        found = await verdicts(site_of(world, tmp_path), "sweeper", "lost_resolved")
        assert (found["sweeper"].status, found["lost_resolved"].answer) == (WARN, Answer.NO)
        assert found["sweeper"].facts["late_seconds"] == 90
        await world.store.expire(seen=world.now)
        world.advance(700)
        found = await verdicts(site_of(world, tmp_path), "sweeper")
        assert found["sweeper"].status is FAIL
        assert "lost runs wait" in found["sweeper"].found
        (lost,) = await world.store.unresolved()
        await world.resolve(await world.grant_of(lost))
        swept = await verdict(site_of(world, tmp_path), "sweeper")
        assert (swept.status, swept.facts["swept_at"]) == (OK, world.now)


async def test_due_jobs_that_nobody_promotes_are_seen(store_url: str, tmp_path: Path) -> None:
    async with new_world(store_url, audit)() as world:
        await world.add(run_at=world.now + timedelta(seconds=10))
        world.advance(100)
        assert "due jobs wait" in (await verdict(site_of(world, tmp_path), "sweeper")).found
        await world.store.promote()
        assert (await verdict(site_of(world, tmp_path), "sweeper")).status is OK


async def test_workers_are_compared(store_url: str, tmp_path: Path) -> None:
    async with new_world(store_url, audit)() as world:
        await world.offer("visit", version=__version__, engine=150)

        async def workers() -> Verdict:
            return await verdict(site_of(world, tmp_path), "workers")

        assert (await workers()).status is OK
        await world.offer("visit", worker_id="w2", incarnation="i2", version="0.0.1", engine=150)
        assert (await workers()).facts["versions"] == sorted(["0.0.1", __version__])
        assert (await workers()).status is WARN
        await world.offer("visit", worker_id="w2", incarnation="i2", version=__version__, engine=149)
        assert "browser versions 149, 150" in (await workers()).found
        world.advance(100)
        await world.offer("visit", version=__version__, engine=150)
        assert (await workers()).facts["silent"] == ["w2"]
        await world.offer("visit", worker_id="w2", incarnation="i2", stopping=True)
        assert (await workers()).status is OK
        await world.offer("visit", stopping=True)
        assert (await workers()).status is SKIP
        await world.add()
        assert (await workers()).status is FAIL


async def test_webhooks_that_nobody_sends_are_seen(store_url: str, tmp_path: Path) -> None:
    async with new_world(store_url, audit)() as world:

        async def webhooks(secret: str = "", networks: str = "") -> Verdict:
            made = site_of(world, tmp_path, webhook_secret=secret, webhook_networks=networks)
            return await verdict(made, "webhooks")

        assert (await webhooks()).status is SKIP
        assert (await webhooks("whsec_short")).status is FAIL
        assert (await webhooks(SECRET, "everywhere")).status is FAIL
        owed = await world.owe("https://hook.test/x")
        assert (await webhooks()).status is WARN
        assert (await webhooks(SECRET)).status is OK
        world.advance(300)
        late = await webhooks(SECRET)
        assert (late.status, late.facts["oldest_due_seconds"]) == (FAIL, 300)
        assert SECRET not in str(late)
        await world.take_deliveries()
        assert (await webhooks()).status is OK
        world.advance(3_600)
        for _ in range(20):
            taken = [each for each in await world.take_deliveries() if each.delivery_id == owed.delivery_id]
            if not taken:
                break
            await world.store.settle_deliveries([answered(taken[0], None)])
            world.advance(timedelta(days=2))
        found = await webhooks(SECRET)
        assert (found.status, found.facts["exhausted"]) == (WARN, 1)


async def test_questions_are_answered_from_history(store_url: str, tmp_path: Path) -> None:
    shop = Account(account_id=AccountId("shop"))
    quiet = Account(account_id=AccountId("quiet"))
    records = (shop, quiet, profile("p1", language="en-US", manual_use=ManualUse.ACCEPT), profile("p2"))
    async with new_world(store_url, audit)(*records) as world:
        stale = await world.run()
        await world.add()  # waits for p1
        await world.store.record(manual_use(stale.lease, "changed", ManualUse.ACCEPT, datetime.now(UTC)))
        await world.finish(stale, "LOGIN_REQUIRED")
        assert (await world.store.renew([Renewal(ref=stale.lease.ref)]))[0].refused is not None
        found = await verdicts(site_of(world, tmp_path))
        answers = {name: v.answer for name, v in found.items() if v.answer is not None}
        but = {name for name, answer in answers.items() if answer is Answer.YES_BUT}
        assert but == {"one_profile", "manual_use", "routing_key", "environment"}
        assert Answer.NO not in answers.values()
        assert found["one_profile"].facts["without_profile"] == ["quiet"]
        assert found["routing_key"].facts["parallel_profiles"] == ["shop"]
        assert found["manual_use"].facts["detected"] == 1
        assert found["late_writes"].facts["refused"] == 1
        assert found["conflicts_logged"].facts["conflicts"] == 1
        assert found["failure_owner"].facts["failures"] == {"account": 1}
        assert found["lost_resolved"].facts["open_reviews"] == 2
        await world.declare(Account(account_id=AccountId("shop"), routing=Routing.ACCOUNT), *records[2:])
        assert (await verdict(site_of(world, tmp_path), "routing_key")).answer is Answer.YES
        world.advance(timedelta(days=8))
        old = await verdicts(site_of(world, tmp_path), "manual_use", "late_writes", "failure_owner", "lost_resolved")
        assert (old["manual_use"].facts["detected"], old["late_writes"].facts["refused"]) == (0, 0)
        assert old["failure_owner"].facts["failures"] == {}
        assert "2 reviews open, the oldest for 8 days" in old["lost_resolved"].found


async def test_doctor_writes_nothing(store_url: str, tmp_path: Path) -> None:
    async with new_world(store_url, audit)() as world:
        await world.run()
        world.advance(1_000)
        before: list[Event] = await world.events()
        await verdicts(site_of(world, tmp_path))
        assert await world.events() == before
        assert EventType.LEASE_EXPIRED not in {event.type for event in before}
