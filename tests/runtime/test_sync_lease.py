"""A lease in a plain script: the same endings, renewal and losses as with an event loop, and real Chromium."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import leasekeeper
from leasekeeper import Fail, Lane, LeaseLost, Note, ProfileBusy, RunRecord, connect
from leasekeeper.client import Client
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.errors import Conflict, NotFound
from tests.conformance.world import fleet, profile
from tests.runtime import stage
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE, furnish

CALM: dict[str, Any] = dict(stage.CALM)
TIMES: dict[str, Any] = dict(stage.TIMES)
HOW_TO = Path(__file__).parents[2] / "docs/howto/lease-from-your-own-program.md"


def at(url: str, work: Callable[[Client], Awaitable[Any]]) -> Any:
    """Do something with a client of another program."""

    async def whole() -> Any:
        async with connect(url) as client:
            return await work(client)

    return asyncio.run(whole())


def state_of(url: str) -> str:
    return str(at(url, lambda client: client.get(Lane, "p1")).state)


@pytest.fixture
def url(store_url: str) -> str:
    at(store_url, furnish)
    return store_url


def test_a_profile_that_is_not_in_the_store_names_the_store_and_what_to_check(sqlite_url: str) -> None:
    """A cron job starts elsewhere than its author: it would look into another, empty store."""
    path = sqlite_url.removeprefix("sqlite:///")
    with pytest.raises(NotFound, match=f"no profile p9 in the store {re.escape(path)}.* LEASEKEEPER_STORE"):
        leasekeeper.lease("p9", store=sqlite_url, **CALM).__enter__()


def test_leaving_the_block_releases_the_profile_and_keeps_what_was_done(url: str) -> None:
    with leasekeeper.lease("p1", store=url, **CALM) as lease:
        assert state_of(url) == "leased"
        lease.check()
        assert lease.proxy_credentials() is None
        lease.checkpoint("dashboard_open", url="https://site.test/")
        lease.note("a new banner")
        with lease.mutating("export"):
            pass
        lease.release(output={"orders": 3})
    run = at(url, lambda client: client.get(RunRecord, lease.lease.run_id))
    assert (run.result, run.last_safe_step, run.output, lease.token) == (
        "completed",
        "dashboard_open",
        {"orders": 3},
        1,
    )
    assert [note.text for note in at(url, lambda client: client.find(Note)).items] == ["a new banner"]
    assert state_of(url) == "available"
    with pytest.raises(Conflict, match="inside the 'with' block only"):
        lease.checkpoint("too_late")
    assert not [thread for thread in threading.enumerate() if thread.name == "leasekeeper-lease"]


@pytest.mark.parametrize(
    ("error", "state"),
    [(Fail("LOGIN_REQUIRED", "the form"), "review_required"), (NameError("typo"), "available"), (None, "available")],
)
def test_the_ending_decides_what_the_profile_becomes(url: str, error: Exception | None, state: str) -> None:
    caught = None
    try:
        with leasekeeper.lease("p1", store=url, **CALM):
            if error is not None:
                raise error
    except (Fail, NameError) as left:
        caught = left
    assert caught is error
    assert state_of(url) == state


def test_an_exception_inside_a_mutating_section_quarantines(url: str) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        leasekeeper.lease("p1", store=url, **CALM) as lease,
        lease.mutating("submit_order"),
    ):
        raise ZeroDivisionError
    assert state_of(url) == "quarantined"


def test_a_script_that_does_nothing_for_longer_than_the_ttl_keeps_its_lease(sqlite_url: str) -> None:
    at(sqlite_url, furnish)
    with leasekeeper.lease("p1", store=sqlite_url, **TIMES) as lease:
        time.sleep(TIMES["lease_ttl"] + 0.5)  # waits: till past the TTL
        lease.check()
    assert state_of(sqlite_url) == "available"


def test_a_revoked_lease_is_noticed_by_check_and_by_the_end_of_the_block(url: str) -> None:
    def revoke(client: Client) -> Coroutine[Any, Any, object]:
        decision = Decision(target=Target.LEASE, id=lease.lease.lease_id, action=Action.REVOKE, note="n", actor="a")
        return client.store.decide(decision)

    with pytest.raises(LeaseLost), leasekeeper.lease("p1", store=url, **CALM) as lease:  # noqa: PT012 - the end raises
        at(url, revoke)
        until = time.monotonic() + PATIENCE
        with pytest.raises(LeaseLost, match="Stop using profile p1"):  # noqa: PT012 - one of the checks raises
            while time.monotonic() < until:
                lease.check()
                time.sleep(0.01)  # waits: until the renewal was refused, in small steps


def test_a_taken_profile_is_refused_and_leaves_no_thread(url: str) -> None:
    with leasekeeper.lease("p1", store=url, worker_id="night-shift", **CALM):
        lease = leasekeeper.lease("p1", store=url, wait=0.05, **CALM)
        with pytest.raises(ProfileBusy, match="night-shift"):
            lease.__enter__()
        browser = leasekeeper.browser("p1", store=url, wait=0.05, **CALM)
        with pytest.raises(ProfileBusy, match="night-shift"):
            browser.__enter__()
        with pytest.raises(ProfileBusy, match="night-shift"):  # it may be tried again
            browser.__enter__()
        assert len([thread for thread in threading.enumerate() if thread.name == "leasekeeper-lease"]) == 1
    with lease:
        assert state_of(url) == "leased"


def test_ctrl_c_before_the_profile_was_touched_leaves_it_available(sqlite_url: str) -> None:
    at(sqlite_url, furnish)
    script = (
        "import leasekeeper, signal\n"
        f"with leasekeeper.lease('p1', store={sqlite_url!r}):\n"
        "    print('held', flush=True)\n"
        "    signal.pause()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert "KeyboardInterrupt" in said
    assert state_of(sqlite_url) == "available"


def test_the_sync_lease_offers_what_the_async_one_does() -> None:
    public = {name for name in vars(leasekeeper.HeldLease) if not name.startswith("_")}
    assert {name for name in vars(leasekeeper.SyncLease) if not name.startswith("_")} == public - {"lost"}


def test_the_script_of_the_how_to_runs_with_five_changed_lines(sqlite_url: str, tmp_path: Path) -> None:
    diff = re.search(r"^```diff\n(.*?)^```$", HOW_TO.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert diff is not None
    lines = diff[1].splitlines()
    assert len([line for line in lines if line.startswith("+")]) == 5
    compile("\n".join(line[1:] for line in lines if not line.startswith("+")), "before", "exec")
    at(sqlite_url, lambda client: client.store.apply(fleet(profile("store_us_018")), actor="test"))
    with Shop() as shop:
        after = "\n".join(line[1:] for line in lines if not line.startswith("-"))
        script = after.replace("https://shop.example/orders", f"{shop.url}/?title=orders&by=script")
        assert script != after
        reported = {"LEASEKEEPER_STORE": sqlite_url, "LEASEKEEPER_DATA_DIR": str(tmp_path)}
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", script],
                env={**os.environ, **reported},
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            assert (done.returncode, done.stdout) == (0, "orders\n"), done.stderr
        assert len(shop.of("script")) == 2
    runs = at(sqlite_url, lambda client: client.find(RunRecord, profile_id="store_us_018")).items
    assert [run.result for run in runs] == ["completed", "completed"]
    assert at(sqlite_url, lambda client: client.get(Lane, "store_us_018")).state == "available"
