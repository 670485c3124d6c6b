"""A canary in every field that may hold a secret, and a search for it, byte by byte, in everything that is left behind.

A real browser behind a proxy with a login, webhooks that are signed, evidence in a bucket, a server with tokens. The
page writes its secrets to the console, to addresses and into an error of the task, as real pages do.
"""

import asyncio
import base64
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from leasekeeper.config import SecretConfig
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import RunRecord
from leasekeeper.encryption import new_key, read_keyring
from leasekeeper.ports import Store
from leasekeeper.stores import open_store
from leasekeeper.wire import parse_jobs
from tests.browsers.sites import serving
from tests.conformance.world import fleet, profile, proxy
from tests.e2e.arena import REPOSITORY
from tests.evidence.test_places import content, keys, place_at
from tests.runtime.browsing import descendants
from tests.runtime.stage import until
from tests.webhooks.receiver import receiving

PLACES = ("proxy", "header", "cookie", "parameter", "error", "bucket", "webhook")
CANARIES = {place: f"canary-{place}-{secrets.token_hex(8)}" for place in PLACES}
LOGIN = f"robot:{CANARIES['proxy']}"
KEY = new_key()
WEBHOOK = "whsec_" + base64.b64encode(CANARIES["webhook"].encode()).decode()

PAGE = f"""<!doctype html><title>leaky</title><p>a page</p><script>
document.cookie = "session={CANARIES["cookie"]}; max-age=100000";
window.password = "{CANARIES["error"]}";
console.error("Cookie: session={CANARIES["cookie"]}");
console.error("Authorization: Bearer {CANARIES["header"]}");
window.asked = Promise.all([
    fetch("/orders?token={CANARIES["parameter"]}", {{headers: {{Authorization: "Bearer {CANARIES["header"]}"}}}}),
    fetch("/nothing?access_key={CANARIES["parameter"]}"),
]);
</script>"""


def forms(text: str) -> list[bytes]:
    """A secret as it may be written."""
    data = text.encode()
    return [data, base64.b64encode(data).rstrip(b"="), quote(text, safe="").encode(), data.hex().encode()]


SEARCHED = [form for text in (*CANARIES.values(), LOGIN, KEY, WEBHOOK) for form in forms(text)]


def found_in(data: bytes) -> list[str]:
    return [form.decode() for form in SEARCHED if form in data]


@asynccontextmanager
async def leaky_site() -> AsyncIterator[tuple[int, list[str]]]:
    """A proxy that asks for a login and answers for every site. With it, the heads of the requests that it accepted."""
    accepted: list[str] = []
    basic = base64.b64encode(LOGIN.encode()).decode()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        known, missing = f"Basic {basic}" in head, "/nothing" in head
        if known:
            accepted.append(head)
        status = ("404 Not Found" if missing else "200 OK") if known else "407 Login"
        ask = "" if known else 'Proxy-Authenticate: Basic realm="exit"\r\n'
        body = PAGE if known else "no"
        start = f"HTTP/1.1 {status}\r\n{ask}Content-Type: text/html\r\nConnection: close\r\n"
        writer.write(f"{start}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()

    async with serving(handle) as port:
        yield port, accepted


@contextmanager
def running(log: Path, *arguments: str, **environ: str) -> Iterator["subprocess.Popen[bytes]"]:
    """One of our programs, as a person starts it; asked to stop at the end."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "leasekeeper", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **environ},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(120)


def command_lines(*pids: int) -> bytes:
    """The command lines of these processes and of all below them."""
    lines = b""
    for pid in {*pids, *(below for top in pids for below in descendants(top))}:
        try:
            lines += Path(f"/proc/{pid}/cmdline").read_bytes() + b"\n"
        except OSError:
            continue
    return lines


def files(folder: Path, profiles: Path) -> dict[str, list[str]]:
    """What was found in each file. The browser's own hold the cookies of its profile: that is what a profile is."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_relative_to(profiles)]
    return {str(path.relative_to(folder)): found_in(path.read_bytes()) for path in paths}


async def prepare(store: Store, port: int) -> None:
    await store.put_secret(read_keyring(SecretConfig(keys=KEY)).seal("exit", LOGIN), actor="ann")
    exit_us = proxy(server=f"http://127.0.0.1:{port}", credentials="secret:exit")
    await store.apply(fleet(profile("p1", proxy_id="exit_us"), exit_us), actor="test")


async def test_no_secret_is_left_anywhere(tmp_path: Path, bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, log, url = tmp_path / "data", tmp_path / "up.log", f"sqlite:///{tmp_path}/leasekeeper.db"
    environ = {
        "LEASEKEEPER_STORE": url,
        "LEASEKEEPER_DATA_DIR": str(data),
        "LEASEKEEPER_EVIDENCE": bucket_url,
        "LEASEKEEPER_SECRET_KEY": KEY,
        "LEASEKEEPER_WEBHOOK_SECRET": WEBHOOK,
        "LEASEKEEPER_WEBHOOK_NETWORKS": "127.0.0.1",
        "LEASEKEEPER_POLL_EVERY": "0.2",
        "LEASEKEEPER_SWEEP_EVERY": "0.2",
        "AWS_SECRET_ACCESS_KEY": CANARIES["bucket"],
    }
    lines, left = b"", dict[str, list[str]]()
    store = await open_store(url)
    try:
        async with leaky_site() as (port, accepted), receiving() as receiver:
            await prepare(store, port)
            with running(log, "up", "tests.e2e.tasks:app", "-v", **environ) as worker:
                jobs = []
                for fails in (False, True):
                    spec = {
                        "task": "leak",
                        "profile_id": "p1",
                        "max_attempts": 1,
                        "callback_url": receiver.url,
                        "payload": {"url": "http://shop.test/", "fails": fails},
                    }
                    jobs.append((await store.submit(parse_jobs([spec])))[0].job)

                async def over() -> list[Job]:
                    nonlocal lines
                    lines += await asyncio.to_thread(command_lines, worker.pid)
                    found = [await store.get(Job, job.job_id) for job in jobs]
                    return found if all(job.run_id and job.state not in ("queued", "running") for job in found) else []

                done = await until(over)

                async def told() -> bool:
                    return len({message.id for message in receiver.messages}) >= 1

                await until(told)
            runs = [await store.get(RunRecord, str(job.run_id)) for job in done]
            assert [run.result for run in runs] == ["completed", "failed"], [run.message for run in runs]
            assert "[redacted]" in runs[1].message
            heads = "".join(accepted)
            # The canaries were really there: in what the browser sent.
            assert all(CANARIES[place] in heads for place in ("header", "cookie", "parameter"))
            left["webhooks"] = found_in(repr(receiver.messages).encode())
    finally:
        await store.close()
    assert b"--user-data-dir=" in lines
    left["command lines"] = found_in(lines)
    left |= files(tmp_path, data / "profiles")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARIES["bucket"])
    place = place_at(bucket_url)
    stored = await keys(place)
    assert any(key.endswith("/final.png") for key in stored)
    for key in stored:
        left[key] = found_in(await content(place, key))
    assert {"leasekeeper.db", "up.log"} <= set(left)
    assert {where: what for where, what in left.items() if what} == {}
