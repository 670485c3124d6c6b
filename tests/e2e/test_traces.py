"""One trace per job, from the process that submits it through server and worker to the receiver of its webhook."""

import asyncio
import os
import secrets
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from leasekeeper.stores import open_store
from tests.conformance.world import fleet, profile
from tests.e2e.arena import REPOSITORY
from tests.e2e.otlp import Received, Traces, receiving_traces
from tests.e2e.test_canary import running
from tests.runtime.stage import until
from tests.service.test_server import started
from tests.webhooks.receiver import SECRET, receiving

OF_A_RUN = {"wait", "lease", "launch", "evidence", "close", "settle"}


def new_parent() -> tuple[str, str, str]:
    """Trace id, span id, and both as a caller sends them."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, f"00-{trace_id}-{span_id}-01"


def submit(url: str, token: str, header: str | None, **job: Any) -> str:
    headers = {"Authorization": f"Bearer {token}", **({"traceparent": header} if header else {})}
    answer = httpx2.post(f"{url}/v1/jobs", headers=headers, json=job)
    assert answer.status_code == 201, answer.text
    job_id: str = answer.json()["items"][0]["job"]["job_id"]
    return job_id


def only(traces: Traces, name: str, trace_id: str) -> Received:
    (span,) = traces.named(name, trace_id)
    return span


async def complete(traces: Traces, trace_id: str, *names: str) -> None:
    """Wait until spans of these names have arrived in a trace."""

    async def there() -> bool:
        return all(traces.named(name, trace_id) for name in names)

    await until(there)


def check_run(traces: Traces, trace_id: str, submitted: Received, task: str, own: str) -> None:
    """The spans of one run, each below the right one, in order, all with the ids of the run."""
    wait, lease = only(traces, "wait", trace_id), only(traces, "lease", trace_id)
    assert (wait.parent_id, lease.parent_id) == (submitted.span_id, submitted.span_id)
    steps = [only(traces, name, trace_id) for name in ("launch", f"task {task}", "evidence", "close", "settle")]
    assert [each.parent_id for each in steps] == [lease.span_id] * len(steps)
    assert [each.start_ns for each in steps] == sorted(each.start_ns for each in steps)
    assert all(lease.start_ns <= each.start_ns and each.end_ns <= lease.end_ns for each in steps)
    assert wait.end_ns <= lease.start_ns
    assert only(traces, own, trace_id).parent_id == steps[1].span_id
    assert {"run_id", "lease_id", "fencing_token", "worker_id", "job_id", "profile_id"} <= {
        name.removeprefix("leasekeeper.") for name in lease.attributes
    }
    assert {each.service for each in (wait, lease, *steps)} == {"leasekeeper-worker"}


async def test_a_job_is_one_trace_across_processes(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(sqlite_url)
    await store.apply(fleet(profile("p1"), profile("p2", driver="null")), actor="test")
    await store.close()
    async with receiving_traces() as traces, receiving() as receiver:
        for name, value in {
            "OTEL_EXPORTER_OTLP_ENDPOINT": traces.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "LEASEKEEPER_WEBHOOK_SECRET": SECRET,
            "LEASEKEEPER_WEBHOOK_NETWORKS": "127.0.0.1",
            "LEASEKEEPER_DATA_DIR": str(tmp_path / "data"),
        }.items():
            monkeypatch.setenv(name, value)

        def start(stack: ExitStack) -> tuple[str, str]:
            _, lines = stack.enter_context(started(sqlite_url))
            (token,) = [line for line in lines if line.startswith("lk_")]
            url = lines[-1].split()[1].rstrip(";")
            arguments = ("--store", url, "worker", "tests.e2e.traced_tasks:app")
            stack.enter_context(running(tmp_path / "worker.log", *arguments, LEASEKEEPER_TOKEN=token))
            return url, token

        processes = ExitStack()
        try:
            url, token = await asyncio.to_thread(start, processes)
            browser, parent, header = new_parent()
            await asyncio.to_thread(
                submit, url, token, header, task="visit", profile_id="p1", callback_url=receiver.url
            )
            field, field_parent, in_the_job = new_parent()
            failing = {"task": "count", "profile_id": "p2", "payload": {"fails": True}, "traceparent": in_the_job}
            await asyncio.to_thread(submit, url, token, header, **failing)
            await asyncio.to_thread(submit, url, token, None, task="count", account_id="shop", profile_id="p2")
            await complete(traces, browser, "submit visit", "webhook job.completed", "read the orders", *OF_A_RUN)
            await complete(traces, field, "submit count", "count the orders", *OF_A_RUN)
        finally:
            # In a thread: what is left is exported when they end, and received here.
            await asyncio.to_thread(processes.close)
        check_run(traces, browser, sent := only(traces, "submit visit", browser), "visit", "read the orders")
        assert (sent.parent_id, sent.service) == (parent, "leasekeeper-server")
        check_run(traces, field, sent := only(traces, "submit count", field), "count", "count the orders")
        assert sent.parent_id == field_parent
        assert {only(traces, name, field).failed for name in ("task count", "lease")} == {"LOGIN_REQUIRED"}
        assert b"logged out of the shop" not in traces.raw
        webhook = only(traces, "webhook job.completed", browser)
        assert webhook.parent_id == only(traces, "submit visit", browser).span_id
        (message,) = receiver.messages
        assert message.headers["traceparent"] == f"00-{browser}-{webhook.span_id}-01"
        log = (tmp_path / "worker.log").read_text()
        assert f'"trace_id": "{browser}"' in log
        # Nobody traced the third one: its trace begins at the server.
        others = {span.trace_id for span in traces.spans if span.name == "submit count"} - {field}
        assert len(others) == 1


def test_a_command_line_submits_into_the_trace_of_its_environment(sqlite_url: str) -> None:
    trace_id, _, parent = new_parent()

    async def prepare() -> None:
        store = await open_store(sqlite_url)
        await store.apply(fleet(profile("p1")), actor="test")
        await store.close()

    asyncio.run(prepare())

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "leasekeeper", "--store", sqlite_url, *arguments]
        environ = {**os.environ, "TRACEPARENT": parent}
        return subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, check=True, text=True).stdout

    run("submit", "visit", "--profile", "p1")
    assert f"00-{trace_id}-" in run("jobs", "list", "--json")


def test_no_process_loads_opentelemetry_that_does_not_export() -> None:
    program = (
        "import sys, leasekeeper, leasekeeper.client, leasekeeper.runtime.worker, leasekeeper.service.app;"
        "import leasekeeper.cli.submit, leasekeeper.cli.worker, leasekeeper.cli.server;"
        "from leasekeeper.cli import traces; traces.start('x');"
        "from leasekeeper.runtime import tracing;"
        "tracing.step('x').__enter__(); tracing.current(); tracing.inherit()();"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    answer = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, check=True, text=True)
    assert answer.stdout == "[]\n"
