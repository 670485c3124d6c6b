"""Stored secrets in use: a browser behind a proxy that asks for a login, and what happens without the key."""

import asyncio
import base64
import logging
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import connect
from leasekeeper.app import App, Run, SyncRun
from leasekeeper.config import SecretConfig, load
from leasekeeper.core.jobs import JobState
from leasekeeper.core.leases import RunResult
from leasekeeper.core.notes import Note
from leasekeeper.encryption import new_key, read_keyring
from leasekeeper.errors import Fail, LeaseLost, SecretKeyMissing, SecretKeyWrong, SecretNotFound
from leasekeeper.ports import Store
from leasekeeper.runtime.fleet_facts import webhook_facts
from leasekeeper.runtime.outbox import sender_of
from leasekeeper.runtime.secrets import webhook_settings
from leasekeeper.webhooks.message import new_secret, read_keys
from tests.browsers.sites import serving
from tests.conformance.world import fleet, profile, proxy
from tests.runtime.browsing import House, house

KEY = new_key()
PASSWORD = "canary-4be1-hunter2"  # noqa: S105 - nobody's password
LOGIN = f"robot:{PASSWORD}"
BASIC = base64.b64encode(LOGIN.encode()).decode()


async def put(store: Store, name: str = "us", value: str = LOGIN, key: str = KEY) -> None:
    await store.put_secret(read_keyring(SecretConfig(keys=key)).seal(name, value), actor="ann")


@asynccontextmanager
async def guarded_proxy() -> AsyncIterator[tuple[int, list[str]]]:
    """A proxy that answers with a page of its own, to those who log in. With it, the heads of accepted requests."""
    accepted: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        known = f"Basic {BASIC}" in head
        if known:
            accepted.append(head)
        status = "200 OK" if known else '407 Login\r\nProxy-Authenticate: Basic realm="exit"'
        body = f"<title>behind</title><p>{PASSWORD}</p>" if known else "no"
        start = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write((start + body).encode())
        await writer.drain()

    async with serving(handle) as port:
        yield port, accepted


def command_lines() -> bytes:
    return subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, check=True).stdout


def visiting(seen: list[bytes]) -> App:
    """A task that opens a page, echoes the password where it should not be, and looks at all command lines."""
    app = App()

    @app.task("visit", warm=False)
    async def visit(run: Run) -> dict[str, Any]:
        await run.page.goto("http://shop.test/")
        await run.page.evaluate("text => console.error(text)", f"login {PASSWORD} {BASIC}")
        seen.append(await asyncio.to_thread(command_lines))
        return {"title": await run.page.title()}

    return app


async def behind(home: House, port: int, credentials: str = "secret:us") -> None:
    await home.store.apply(
        fleet(profile("p1", proxy_id="exit_us"), proxy(server=f"http://127.0.0.1:{port}", credentials=credentials)),
        actor="test",
    )


def files_with(folder: Path, *texts: str) -> list[str]:
    """Every file below that holds one of these, the database and its log among them. The page itself may be cached."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_relative_to(folder / "data" / "profiles"):
            data = path.read_bytes()
            found += [f"{path.name}: {text}" for text in texts if text.encode() in data]
    return found


async def test_a_worker_logs_in_with_a_stored_secret_that_shows_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url, lines = f"sqlite:///{tmp_path}/leasekeeper.db", list[bytes]()
    async with guarded_proxy() as (port, accepted), house(visiting(lines), url, tmp_path, secret_key=KEY) as home:
        await put(home.store)
        await behind(home, port)
        (job,) = await home.do(await home.submit("visit"))
        run = await home.run_of(job)
        assert (job.state, run.output) == (JobState.COMPLETED, {"title": "behind"}), run.message
        assert accepted
        canaries = (PASSWORD, BASIC, KEY, KEY[5:])
        assert files_with(tmp_path, *canaries) == []
        events = repr(await home.events())
        assert [text for text in canaries if text in caplog.text or text in events or text.encode() in lines[0]] == []


@pytest.mark.parametrize(
    ("keys", "stored", "code"),
    [("", True, "SECRET_KEY_MISSING"), (new_key(), True, "SECRET_KEY_WRONG"), (KEY, False, "SECRET_NOT_FOUND")],
    ids=["no key", "another key", "no secret"],
)
async def test_a_job_whose_secret_cannot_be_had_waits_uncounted(
    sqlite_url: str, tmp_path: Path, keys: str, stored: bool, code: str
) -> None:
    async with guarded_proxy() as (port, accepted), house(visiting([]), sqlite_url, tmp_path, secret_key=keys) as home:
        if stored:
            await put(home.store)
        await behind(home, port)
        (job,) = await home.do(await home.submit("visit", max_attempts=1))
        run, lane = await home.run_of(job), await home.lane()
        assert (job.state, job.attempt, run.result) == (JobState.SCHEDULED, 0, RunResult.BLOCKED)
        assert (run.stop_reason, lane.state) == ("SECRET_UNAVAILABLE", "available")
        assert f"the last time: SECRET_UNAVAILABLE: {code}: " in job.detail
        assert accepted == []


def signing_in(seen: list[str]) -> App:
    """Tasks of both kinds that use a secret of their payload, and repeat it in a note and in an error."""
    app = App()

    @app.task("sign_in", warm=False)
    async def sign_in(run: Run) -> None:
        seen.append(await run.secret(run.payload["login"]))
        await run.note(f"signs in with {seen[-1]}")
        raise RuntimeError(f"the shop refused {seen[-1]}")

    @app.task("sign_in_by_hand", warm=False)
    def sign_in_by_hand(run: SyncRun) -> None:
        seen.append(run.secret(run.payload["login"]))
        raise Fail("LOGIN_REQUIRED", f"the shop refused {seen[-1]}")

    return app


@pytest.mark.parametrize("task", ["sign_in", "sign_in_by_hand"])
async def test_a_task_gets_a_secret_of_its_payload_that_shows_nowhere(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, task: str
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = list[str]()
    null = profile("p1", driver="null")
    async with house(signing_in(seen), sqlite_url, tmp_path, null, drivers="null", secret_key=KEY) as home:
        await put(home.store, "job-shop", PASSWORD)
        (job,) = await home.do(await home.submit(task, max_attempts=1, payload={"login": "secret:job-shop"}))
        run = await home.run_of(job)
        assert seen == [PASSWORD]
        assert run.message.endswith("the shop refused [redacted]")
        left = [caplog.text, repr(await home.events()), repr(await home.store.find(Note)), repr(job), repr(run)]
        assert [text for text in left if PASSWORD in text] == []
        assert files_with(tmp_path, PASSWORD, KEY) == []


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("secret:job-shop", "secret job-shop is not in the store"),
        ("secret:us", "only secrets whose name begins with job-"),
    ],
)
async def test_a_secret_that_a_task_may_not_have_ends_its_run(
    sqlite_url: str, tmp_path: Path, reference: str, said: str
) -> None:
    seen, null = list[str](), profile("p1", driver="null")
    async with house(signing_in(seen), sqlite_url, tmp_path, null, drivers="null", secret_key=KEY) as home:
        await put(home.store)
        (job,) = await home.do(await home.submit("sign_in", max_attempts=1, payload={"login": reference}))
        run = await home.run_of(job)
        assert (run.stop_reason, seen) == ("SECRET_UNAVAILABLE", [])
        assert said in run.message
        assert run.message.endswith("(SECRET_NOT_FOUND)")


async def test_a_program_gets_the_login_of_its_proxy_while_it_holds_the_lease(sqlite_url: str) -> None:
    async with connect(sqlite_url, secret_key=KEY) as client:
        records = (profile("p1", proxy_id="exit_us"), profile("p2"), proxy(credentials="secret:us"))
        await client.store.apply(fleet(*records), actor="test")
        with pytest.raises(SecretNotFound):
            async with client.lease("p1") as lease:
                await lease.proxy_credentials()
        async with client.lease("p2") as lease:
            assert await lease.proxy_credentials() is None
    async with connect(sqlite_url, secret_key=KEY) as client:
        await put(client.store)
        await client.store.apply(fleet(profile("p3", proxy_id="exit_us"), records[2]), actor="test")
        async with client.lease("p3") as lease:
            found = await lease.proxy_credentials()
            assert found is not None
            assert (found.username, found.password) == ("robot", PASSWORD)
        with pytest.raises(LeaseLost):
            await lease.proxy_credentials()


async def test_webhooks_are_signed_with_a_stored_secret(sqlite_url: str) -> None:
    stored, plain, named = new_secret(), new_secret(), "secret:hooks"
    async with connect(sqlite_url) as client:
        await put(client.store, "hooks", stored)
        settings = load({}, webhook_secret=f"{named} {plain}", secret_key=KEY)
        sender = await sender_of(client.store, settings)
        assert sender is not None
        assert sender.keys == read_keys(f"{stored} {plain}")
        facts = await webhook_facts(client.store, settings)
        assert (facts.secret, facts.problem) == (True, "")
        for keys, missing in (("", SecretKeyMissing), (new_key(), SecretKeyWrong)):
            with pytest.raises(missing):
                await webhook_settings(client.store, load({}, webhook_secret=named, secret_key=keys))
        with pytest.raises(SecretNotFound):
            await webhook_settings(client.store, load({}, webhook_secret=f"{named}-2", secret_key=KEY))
