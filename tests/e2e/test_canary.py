"""A canary in every field that may hold a secret, and a search for it, byte by byte, in everything that is left behind.

A real browser behind a proxy with a login, a job whose payload names a secret, webhooks that are signed, evidence in a
bucket, a server with tokens, a launcher with a token, traces. The page writes its secrets to the console, to addresses
and into an error of the task, as real pages do; the launcher repeats its token in an error. Searched are files, logs,
command lines, webhooks, the bucket, traces, every answer of the API, the metrics and the pages of the dashboard.
"""

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from leasekeeper.config import SecretConfig
from leasekeeper.core.alerts import NewEndpoint, secret_of
from leasekeeper.core.ids import LauncherId
from leasekeeper.core.jobs import Job
from leasekeeper.core.launchers import Launcher
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.tokens import ID_LENGTH, SECRET_BYTES, NewToken, Scope, hash_of, token_id_of, token_text
from leasekeeper.encryption import KEY_BYTES, PREFIX, read_keyring
from leasekeeper.lists import LISTS
from leasekeeper.ports import Store
from leasekeeper.service.pages.signing_in import COOKIE
from leasekeeper.service.pages.table import TABLE as PAGES_TABLE
from leasekeeper.service.routes import ROUTES
from leasekeeper.service.routes.records import NOUNS
from leasekeeper.stores import open_store
from leasekeeper.wire import parse_jobs
from tests.browsers.sites import serving
from tests.conformance.world import fleet, profile, proxy
from tests.e2e.arena import REPOSITORY
from tests.e2e.otlp import receiving_traces
from tests.evidence.test_places import content, keys, place_at
from tests.launchers.stage import launched
from tests.runtime.browsing import descendants
from tests.runtime.stage import until
from tests.webhooks.receiver import receiving

PLACES = ("proxy", "header", "cookie", "parameter", "error", "bucket", "webhook", "endpoint", "launcher", "payload")
CANARIES = {place: f"canary-{place}-5e1f0a9c37d2b846" for place in PLACES}
LOGIN = f"robot:{CANARIES['proxy']}"
KEY = PREFIX + base64.urlsafe_b64encode(bytes(range(60, 60 + KEY_BYTES))).decode()
WEBHOOK, ENDPOINT = (
    "whsec_" + base64.b64encode(CANARIES[place].encode()).decode() for place in ("webhook", "endpoint")
)
# Their ids are no secrets: what is random in them is.
TOKENS = [token_text("canarycanary"[:ID_LENGTH], bytes(range(100, 100 + SECRET_BYTES)))]

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


SEARCHED = [form for text in (*CANARIES.values(), LOGIN, KEY, WEBHOOK, ENDPOINT, *TOKENS) for form in forms(text)]


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


@asynccontextmanager
async def leaky_launcher() -> AsyncIterator[tuple[int, list[str]]]:
    """A launcher that refuses every call, and repeats in its answer what it was sent. With it, what that was."""
    sent: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        sent.append(head)
        body = json.dumps({"error": f"not allowed: {head}"})
        start = "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{start}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()

    async with serving(handle) as port:
        yield port, sent


async def prepare(store: Store, port: int, launcher_port: int, endpoint_url: str) -> None:
    keyring = read_keyring(SecretConfig(keys=KEY))
    await store.put_secret(keyring.seal("exit", LOGIN), actor="ann")
    await store.put_secret(keyring.seal("job-shop", CANARIES["payload"]), actor="ann")
    exit_us = proxy(server=f"http://127.0.0.1:{port}", credentials="secret:exit")
    vendor = Launcher(
        launcher_id=LauncherId("mlx"),
        driver="multilogin",
        url=f"http://127.0.0.1:{launcher_port}",
        api_token="env:CANARY_LAUNCHER_TOKEN",  # noqa: S106 - the reference
        folder="folder-1",
    )
    declared = fleet(profile("p1", proxy_id="exit_us"), launched("p2"), exit_us)
    await store.apply(replace(declared, launchers={"mlx": vendor}), actor="test")
    endpoint = NewEndpoint(endpoint_id="oncall", url=endpoint_url, events=("*",))
    await store.add_endpoint(endpoint, keyring.seal(secret_of("oncall"), ENDPOINT), actor="ann")
    (text,) = TOKENS
    token_id = token_id_of(text)
    assert token_id is not None
    new = NewToken(token_id=token_id, name="canary", scopes=tuple(Scope), hash=hash_of(text))
    await store.create_token(new, actor="ann")


def pages_of(item: dict[str, Any], noun: str) -> Iterator[str]:
    """The pages and further answers about one record."""
    kind = NOUNS.get(noun)
    key = LISTS[kind].key if kind is not None else None
    if key is not None:
        yield f"/v1/{noun}/{quote(str(item[key]), safe='')}"
    if noun in ("jobs", "profiles"):
        yield f"/v1/{noun}/{item[str(key)]}/why"
        yield f"/ui/{noun}/{item[str(key)]}"
    if noun == "runs":
        yield f"/ui/runs/{item['run_id']}"
        for artifact in (item.get("evidence") or {}).get("artifacts", ()):
            yield f"/v1/runs/{item['run_id']}/evidence/{artifact['name']}"
            yield f"/ui/runs/{item['run_id']}/evidence/{artifact['name']}"


def every_answer(url: str, token: str) -> dict[str, bytes]:
    """What the API, the metrics and the dashboard answer to somebody who may read everything."""
    whole = [row.path for row in ROUTES if row.method == "GET" and "{" not in row.path and "stream" not in row.path]
    whole += [row.path for row in PAGES_TABLE if row.method == "GET" and "{" not in row.path and row.path != "/ui/live"]
    answers: dict[str, bytes] = {}
    headers, cookies = {"Authorization": f"Bearer {token}"}, {COOKIE: token}
    with httpx2.Client(base_url=url, headers=headers, cookies=cookies, timeout=120) as client:

        def ask(path: str) -> bytes:
            answer = client.get(path)
            # Without a session there is no browser to tell of.
            assert answer.status_code == (404 if path.startswith("/json/") else 200), (path, answer.text)
            head = repr(answer.headers.raw).encode()
            answers[path] = head + answer.content
            return answer.content

        for path in whole:
            text = ask(path)
            if path.startswith("/v1/") and b'"items"' in text:
                for item in json.loads(text)["items"]:
                    for further in pages_of(item, path.removeprefix("/v1/")):
                        ask(further)
        refused = client.get("/v1/nothing", headers={"Authorization": f"Bearer {token}x"})
        answers["a refusal"] = refused.content
        for noun in NOUNS.values():
            call = {"version": 1, "arguments": {"kind": noun.__name__}}
            found = client.post("/v1/store/find", json=call)
            assert found.status_code == 200, found.text
            answers[f"find {noun.__name__}"] = found.content
    return answers


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
        "LEASEKEEPER_SERVER_PORT": "0",
        "LEASEKEEPER_DRIVERS": "local launcher",
        "AWS_SECRET_ACCESS_KEY": CANARIES["bucket"],
        "CANARY_LAUNCHER_TOKEN": CANARIES["launcher"],
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    lines, left = b"", dict[str, list[str]]()
    store = await open_store(url)
    try:
        async with (
            leaky_site() as (port, accepted),
            leaky_launcher() as (launcher_port, sent),
            receiving() as receiver,
            receiving_traces() as traces,
        ):
            await prepare(store, port, launcher_port, f"{receiver.url}oncall")
            environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = traces.endpoint
            with running(log, "up", "tests.e2e.tasks:app", "-v", **environ) as worker:
                jobs = []
                for fails, name in ((False, "p1"), (True, "p1"), (False, "p2")):
                    spec = {
                        "task": "leak",
                        "profile_id": name,
                        "max_attempts": 1,
                        "callback_url": receiver.url,
                        "payload": {"url": "http://shop.test/", "fails": fails, "secret": "secret:job-shop"},
                    }
                    jobs.append((await store.submit(parse_jobs([spec])))[0].job)

                async def over() -> list[Job]:
                    nonlocal lines
                    lines += await asyncio.to_thread(command_lines, worker.pid)
                    found = [await store.get(Job, job.job_id) for job in jobs]
                    return found if all(job.run_id and job.state not in ("queued", "running") for job in found) else []

                done = await until(over)

                async def told() -> bool:
                    lines = {message.line.split()[1] for message in receiver.messages}
                    return len(lines) >= 2 and {"lease", "webhook job.completed"} <= {
                        each.name for each in traces.spans
                    }

                await until(told)
                address = re.search(r"API at (http://127\.0\.0\.1:\d+)/v1", await asyncio.to_thread(log.read_text))
                assert address is not None
                answers = await asyncio.to_thread(every_answer, address[1], TOKENS[0])
            assert {"/metrics", "/v1/events", "/v1/secrets", "/ui/settings"} <= set(answers)
            left |= {path: found_in(text) for path, text in answers.items()}
            left["traces"] = found_in(traces.raw)
            assert any(CANARIES["launcher"] in head for head in sent)
            runs = [await store.get(RunRecord, str(job.run_id)) for job in done]
            assert [run.result for run in runs] == ["completed", "failed", "failed"], [run.message for run in runs]
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
