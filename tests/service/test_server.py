"""The server as people start it: addresses, TLS, the first token, health; and what it answers to what is not there."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from leasekeeper.errors import InputError, LeasekeeperError, error_tree
from leasekeeper.service.problems import status_of
from leasekeeper.service.serving import Address, bind, check_address
from tests.serving import Served


@contextmanager
def started(store: str, *arguments: str) -> "Iterator[tuple[subprocess.Popen[str], list[str]]]":
    """`leasekeeper server` on a free port, with the lines it printed until it served."""
    command = [sys.executable, "-m", "leasekeeper", "--store", store, "server", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not any(line.startswith("serving ") for line in lines):
            line = process.stdout.readline()
            assert line, "\n".join(lines)
            lines.append(line.strip())
        yield process, lines
    finally:
        process.terminate()
        assert process.wait(60) == 0
        assert process.stdout is not None
        process.stdout.close()


def test_the_first_start_prints_an_admin_token_and_no_later_one(sqlite_url: str) -> None:
    with started(sqlite_url) as (_, lines):
        address = lines[-1].split()[1].rstrip(";")
        (token,) = [line for line in lines if line.startswith("lk_")]
        assert httpx2.get(f"{address}/healthz").json()["status"] == "ok"
        assert httpx2.get(f"{address}/readyz").status_code == 200
    with started(sqlite_url) as (_, lines):
        assert not [line for line in lines if "lk_" in line]
    assert token not in Path(sqlite_url.removeprefix("sqlite:///")).read_bytes().decode("latin-1")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "leases.example.com", "::"])  # noqa: S104 - nobody listens there
def test_an_address_of_others_needs_tls(host: str) -> None:
    with pytest.raises(InputError, match="TLS"):
        check_address(Address(host=host))
    check_address(Address(host=host, behind_tls_proxy=True))
    check_address(Address(host=host, tls_cert="cert.pem", tls_key="key.pem"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_loopback_needs_no_tls(host: str) -> None:
    check_address(Address(host=host))


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(InputError, match="together"):
        check_address(Address(tls_cert="cert.pem"))


def test_a_taken_port_is_said(sqlite_url: str, served: Served) -> None:
    port = served.url.split(":")[2].split("/")[0]
    command = [sys.executable, "-m", "leasekeeper", "--store", sqlite_url, "server", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert f"127.0.0.1:{port} cannot be used" in done.stderr


def test_what_is_not_there_is_a_problem(served: Served) -> None:
    answer = httpx2.get(f"{served.url}/nowhere")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "NOT_FOUND"
    other = httpx2.post(f"{served.url}/healthz")
    assert other.status_code == 405
    assert other.headers["allow"] == "GET"
    assert other.json()["code"] == "METHOD_NOT_ALLOWED"


@pytest.mark.parametrize("kind", [kind for kind, _ in error_tree()])
def test_every_error_has_a_status(kind: type[LeasekeeperError]) -> None:
    assert 400 <= status_of(kind.__new__(kind)) < 600


async def test_small_answers_are_sent_at_once() -> None:
    """Without TCP_NODELAY a message behind another one waits until the first is acknowledged: 40 ms each."""
    at_once = asyncio.get_running_loop().create_future()

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at_once.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    bound = bind(Address(port=0))
    async with await asyncio.start_server(serve, sock=bound):
        _, writer = await asyncio.open_connection(*bound.getsockname())
        assert await at_once
        writer.close()
