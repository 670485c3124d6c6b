"""A Redis that is restarted, replaced or gone: what it still knows, and what it grants while it may have forgotten."""

import shutil
import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from leasekeeper.core.jobs import Job, JobState
from leasekeeper.core.leases import RunRecord, Timing
from leasekeeper.core.policy import Policy
from leasekeeper.core.profiles import ProfileState, ReleasePolicy
from leasekeeper.core.settle import Ending, LostFacts
from leasekeeper.errors import StoreNotWritable, StoreUnavailable
from leasekeeper.ports import Renewal, Resolution
from leasekeeper.stores import inspect, open_store
from leasekeeper.stores.redis.tables import PREFIX
from tests.conformance.world import fleet, profile, spec
from tests.redis_store import DurableRedis, redis_server
from tests.stores.redis_steps import CLAIM, DONE, client, looked_after, lost_writes, ready


async def test_a_killed_server_has_everything_again_and_tokens_do_not_repeat(own_server: DurableRedis) -> None:
    store = await ready(own_server.url, profiles=2, jobs=4)
    grants = await store.claim(CLAIM)
    await store.settle([Ending(ref=grants[0].lease.ref, facts=DONE)])
    (held,) = await store.claim(CLAIM)
    own_server.kill()
    own_server.start()
    (renewed,) = await store.renew([Renewal(ref=held.lease.ref)])
    assert renewed.refused is None
    (settled,) = await store.settle([Ending(ref=held.lease.ref, facts=DONE)])
    assert settled.refused is None
    (again,) = await store.claim(CLAIM)
    assert again.lease.token > held.lease.token + 1_000_000, "a token that the server may have forgotten comes again"
    assert again.lease.token < 2**53
    jobs = (await store.find(Job, {}, limit=10)).items
    assert sorted(job.state for job in jobs) == sorted(["completed", "completed", "queued", "running"])
    await store.close()


async def test_a_server_that_lost_its_last_writes_grants_nothing_that_somebody_may_still_hold(
    tmp_path: Path,
) -> None:
    """The append-only file of a moment ago: the grant after it is forgotten, and its token and job must not be given
    to another while its holder does not know that."""
    with redis_server(tmp_path, fsync="everysec") as server:
        store = await ready(server.url)
        with lost_writes(server):
            (held,) = await store.claim(CLAIM)
        assert await store.claim(CLAIM) == []
        (renewed,) = await store.renew([Renewal(ref=held.lease.ref)])
        assert renewed.refused is not None
        other = await open_store(server.url)
        assert await other.claim(CLAIM) == []
        client(server.url).hset(f"{PREFIX}server", "grants_resume_at", "1")
        await other.close()
        other = await open_store(server.url)
        await looked_after(other, held)
        (granted,) = await other.claim(CLAIM)
        assert granted.job is not None
        assert held.job is not None
        assert granted.job.job_id == held.job.job_id
        assert granted.lease.token > held.lease.token
        assert granted.lease.run_id != held.lease.run_id
        runs = (await other.find(RunRecord, {}, limit=10)).items
        assert [run.run_id for run in runs] == [granted.lease.run_id]
        for each in (store, other):
            await each.close()


async def test_a_run_whose_section_and_ending_were_lost_is_not_repeated(tmp_path: Path) -> None:
    later = timedelta(0)
    with redis_server(tmp_path, fsync="everysec") as server:
        store = await ready(server.url, jobs=0, clock=lambda real: real + later)
        await store.apply(fleet(replace(profile("p0"), release_policy=ReleasePolicy.RECOVER)), actor="ann")
        await store.submit([spec("p0")])
        (held,) = await store.claim(CLAIM)
        await store.checkpoint(held.lease.ref, "cart", url="https://site.test/cart")
        with lost_writes(server):
            await store.enter_section(held.lease.ref, "order")
            await store.leave_section(held.lease.ref, "order")
            (settled,) = await store.settle([Ending(ref=held.lease.ref, facts=DONE)])
            assert settled.job_state is JobState.COMPLETED
        later = timedelta(minutes=5)
        (lost,) = await store.expire()
        later = timedelta(minutes=10)
        facts = LostFacts(final_url="https://site.test/done", browser_dead=True, reported_by="keeper")
        (resolved,) = await store.resolve([Resolution(lease_id=lost.lease_id, facts=facts)])
        assert (resolved.job_state, resolved.profile_state) == (JobState.REVIEW, ProfileState.REVIEW_REQUIRED)
        (job,) = (await store.find(Job, {})).items
        assert "lost its last writes" in job.detail
        await store.close()


async def test_who_meets_a_restarted_server_first_need_not_know_how_long_leases_are(tmp_path: Path) -> None:
    with redis_server(tmp_path, fsync="everysec") as server:
        long = timedelta(minutes=5)
        await (await ready(server.url, policy=Policy(timing=Timing(ttl=long)))).close()
        server.kill()
        server.start()
        await inspect(server.url)
        with client(server.url) as connection:
            resume = int(connection.hget(f"{PREFIX}server", "grants_resume_at"))
            left = resume / 1000 - connection.time()[0]
        assert long.total_seconds() - 60 < left <= long.total_seconds() + 1


async def test_what_a_server_lost_goes_by_the_settings_that_it_had_before_its_restart(tmp_path: Path) -> None:
    with redis_server(tmp_path, fsync="everysec") as server:
        store = await ready(server.url)
        server.kill()
        server.fsync = "always"
        server.start()
        assert await store.claim(CLAIM) == []
        with client(server.url) as connection:
            connection.hset(f"{PREFIX}server", "grants_resume_at", "1")
        server.kill()
        server.start()
        assert len(await store.claim(CLAIM)) == 1
        await store.close()


async def test_a_restart_waits_for_the_longest_lease_that_was_granted(tmp_path: Path) -> None:
    with redis_server(tmp_path, fsync="everysec") as server:
        store = await ready(server.url, jobs=0)
        await store.submit([replace(spec("p0"), lock_timeout_seconds=900)])
        assert len(await store.claim(CLAIM)) == 1
        await store.close()
        server.kill()
        server.start()
        await inspect(server.url)
        with client(server.url) as connection:
            resume = int(connection.hget(f"{PREFIX}server", "grants_resume_at"))
            left = resume / 1000 - connection.time()[0]
    assert 840 < left <= 901


async def test_a_server_that_forgot_everything_gives_no_token_again(own_server: DurableRedis) -> None:
    """It may, with durability=none. Fence files of profiles still know the highest token that was launched."""
    url = f"{own_server.url}?durability=none"
    tokens = []
    for _ in range(2):
        store = await ready(url)
        tokens += [grant.lease.token for grant in await store.claim(CLAIM)]
        await store.close()
        own_server.kill()
        shutil.rmtree(own_server.directory / "appendonlydir")
        own_server.start()
    assert tokens[0] < tokens[1] < 2**53


async def test_a_replica_that_takes_over_grants_nothing_that_somebody_may_still_hold(tmp_path: Path) -> None:
    """The link to the replica was cut before a grant. That both wait for their disks does not help: it never came."""
    with redis_server(tmp_path) as primary, redis_server(tmp_path) as replica:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        primary.call("CONFIG", "SET", "port", port)
        primary.call("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        store = await ready(primary.url)
        replica.call("REPLICAOF", "127.0.0.1", port)
        with client(primary.url) as original:
            original.set("copied", 1)
            assert original.wait(1, 12_000) == 1
        replica.call("REPLICAOF", "127.0.0.1", "1")
        (held,) = await store.claim(CLAIM)
        await store.close()
        primary.kill()
        replica.call("REPLICAOF", "NO", "ONE")
        other = await open_store(replica.url)
        assert await other.claim(CLAIM) == []
        (renewed,) = await other.renew([Renewal(ref=held.lease.ref)])
        assert renewed.refused is not None
        await other.close()
        client(replica.url).hset(f"{PREFIX}server", "grants_resume_at", "1")
        other = await open_store(replica.url)
        await looked_after(other, held)
        (granted,) = await other.claim(CLAIM)
        assert granted.lease.token > held.lease.token
        await other.close()


async def test_a_server_that_is_gone_is_an_error_that_says_so(own_server: DurableRedis) -> None:
    store = await ready(own_server.url)
    own_server.kill()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await store.stats()
    own_server.start()
    assert (await store.stats()).jobs == {"queued": 1}
    await store.close()


async def test_scripts_that_a_server_forgot_are_sent_again(redis_url: str) -> None:
    store = await ready(redis_url)
    client(redis_url).script_flush()
    assert len(await store.claim(CLAIM)) == 1
    await store.close()


async def test_a_server_that_is_full_or_a_replica_cannot_be_written(own_server: DurableRedis) -> None:
    store = await ready(own_server.url, jobs=0)
    own_server.call("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreNotWritable, match="memory"):
        await store.submit([spec("p0")])
    own_server.call("CONFIG", "SET", "maxmemory", "0")
    own_server.call("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreNotWritable, match="replica"):
        await store.submit([spec("p0")])
    own_server.call("REPLICAOF", "NO", "ONE")
    assert len(await store.submit([spec("p0")])) == 1
    assert (await store.stats()).jobs == {"queued": 1}
    await store.close()
