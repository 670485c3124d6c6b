"""`leasekeeper login`: a person logs in by hand, then one answer and one note put the profile and its jobs back."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from leasekeeper.app import App
from leasekeeper.core.accounts import Account
from leasekeeper.core.browsers import NULL
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.fleet import Fleet
from leasekeeper.core.ids import AccountId, WorkerId
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, Purpose
from leasekeeper.core.profiles import Lane
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.core.workers import WorkerReport
from leasekeeper.ports import ClaimRequest
from tests.conformance.world import profile
from tests.runtime.browsing import House, house
from tests.runtime.stage import PATIENCE, until


@asynccontextmanager
async def logged_out(url: str, folder: Path) -> AsyncIterator[tuple[House, Job]]:
    """A profile without a browser whose run found that it is logged out, and the job of that run."""
    account = Account(account_id=AccountId("shop"), url="https://shop.test/login")
    async with house(App(), url, folder, profile("p1", driver=NULL), drivers=NULL, browser="/nowhere/chromium") as home:
        store = home.store
        await store.apply(Fleet(accounts={"shop": account}), actor="ann")
        await store.report(WorkerReport(worker_id=WorkerId("w1"), incarnation="i1", pool="default", tasks=("visit",)))
        job = await home.submit("visit")
        (grant,) = await store.claim(ClaimRequest(worker_id=WorkerId("w1"), incarnation="i1", tasks=("visit",)))
        facts = EndFacts(browser=Browser.CLOSED, final_url="https://shop.test/")
        await store.settle([Ending(ref=grant.lease.ref, reason="LOGIN_REQUIRED", message="logged out", facts=facts)])
        yield home, job


async def log_in(home: House, *options: str, answers: str = "") -> str:
    return await at_terminal(home, "login", "p1", *options, answers=answers, purpose=Purpose.INSPECT)


async def at_terminal(home: House, *arguments: str, answers: str = "", purpose: Purpose) -> str:
    """What the command says. Its window is closed, so to speak, by Ctrl-C."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "leasekeeper", *arguments),
        env={
            **os.environ,
            "DISPLAY": ":99",
            "LEASEKEEPER_STORE": home.config.store,
            "LEASEKEEPER_DATA_DIR": str(home.data),
            "LEASEKEEPER_DRIVERS": NULL,
            "LEASEKEEPER_BROWSER": "/nowhere/chromium",
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert program.stdout is not None
    said = b""
    while b"to give it back" not in said and not program.stdout.at_eof():
        said += await asyncio.wait_for(program.stdout.readline(), PATIENCE)

    async def held() -> bool:
        leases = await home.store.find(Lease, {"live": "1", "profile_id": "p1"})
        return [lease.purpose for lease in leases.items] == [purpose]

    await until(held)
    program.send_signal(signal.SIGINT)
    rest, _ = await asyncio.wait_for(program.communicate(answers.encode()), PATIENCE)
    text = (said + rest).decode()
    assert program.returncode == 0, text
    return text


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        (("--then", "requeue", "--note", "logged in by hand", "--by", "ann"), ""),
        (("--by", "ann"), "requeue\nlogged in by hand\n"),
    ],
    ids=["by_options", "by_answers"],
)
async def test_a_login_puts_the_profile_and_its_jobs_back_with_one_note(
    sqlite_url: str, tmp_path: Path, options: tuple[str, ...], answers: str
) -> None:
    async with logged_out(sqlite_url, tmp_path) as (home, job):
        said = await log_in(home, *options, answers=answers)
        assert "profile p1 is review_required: the run stopped with LOGIN_REQUIRED" in said
        assert f"job {job.job_id} (visit) waits for a decision: LOGIN_REQUIRED: logged out" in said
        assert "profile p1 is now available" in said
        assert (await home.store.get(Lane, "p1")).state == "available"
        assert (await home.store.get(Job, job.job_id)).state == "queued"
        decided = [
            *await home.events(type=EventType.PROFILE_DECIDED),
            *await home.events(type=EventType.JOB_DECIDED),
        ]
        assert [(event.actor, event.data["note"]) for event in decided] == [("ann", "logged in by hand")] * 2


async def test_a_login_that_clears_leaves_the_jobs_to_be_decided(sqlite_url: str, tmp_path: Path) -> None:
    async with logged_out(sqlite_url, tmp_path) as (home, job):
        await log_in(home, "--then", "clear", "--note", "logged in")
        assert (await home.store.get(Lane, "p1")).state == "available"
        assert (await home.store.get(Job, job.job_id)).state == "review"


@pytest.mark.parametrize("answers", ["", "clear\n"], ids=["no_answer", "no_note"])
async def test_a_login_that_nobody_answers_for_changes_nothing(sqlite_url: str, tmp_path: Path, answers: str) -> None:
    async with logged_out(sqlite_url, tmp_path) as (home, job):
        said = await log_in(home, answers=answers)
        assert ("no note was given, so nothing was decided" in said) is bool(answers)
        assert "leasekeeper profiles clear p1 --note" in said
        assert (await home.store.get(Lane, "p1")).state == "review_required"
        assert (await home.store.get(Job, job.job_id)).state == "review"


async def test_open_says_that_the_account_is_paused_and_leaves_the_profile_as_it_was(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with house(
        App(), sqlite_url, tmp_path, profile("p1", driver=NULL), drivers=NULL, browser="/nowhere/chromium"
    ) as home:
        await home.store.decide(
            Decision(target=Target.ACCOUNT, id="shop", action=Action.PAUSE, note="audit", actor="bob")
        )
        said = await at_terminal(home, "open", "p1", purpose=Purpose.INSPECT)
        assert said.startswith("account shop is paused: audit\n  you look inside")
        assert "given back: profile p1 is available" in said


async def test_open_any_takes_a_free_profile_of_the_pool(sqlite_url: str, tmp_path: Path) -> None:
    async with house(
        App(), sqlite_url, tmp_path, profile("p1", driver=NULL, tier="gold"), drivers=NULL, browser="/nowhere/chromium"
    ) as home:
        said = await at_terminal(home, "open", "--any", "--label", "tier=gold", purpose=Purpose.MANUAL)
        assert "profile p1 is yours: lease p1:1" in said
        assert "given back: profile p1 is available" in said
