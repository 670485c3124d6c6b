"""TLS with a real certificate: the server, the store over HTTP, evidence and the command line; and what is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from leasekeeper.core.policy import Policy
from leasekeeper.errors import EvidenceUnavailable, InputError, StoreUnavailable
from leasekeeper.evidence.server import ServerEvidence
from leasekeeper.stores import open_store
from tests.conformance.world import fleet, profile
from tests.service.certificates import Certificates, make_certificates
from tests.service.restarts import ServerProcess

PATIENT = Policy(store_timeout=timedelta(minutes=5))


@pytest.fixture(scope="session")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("signed"))


@pytest.fixture(scope="session")
def secure(signed: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a certificate, on all addresses of this machine."""
    folder = tmp_path_factory.mktemp("secure")
    arguments = ["--tls-cert", str(signed.cert), "--tls-key", str(signed.key), "--host", "0.0.0.0"]  # noqa: S104 - that is what TLS allows
    with ServerProcess(f"sqlite:///{folder}/leasekeeper.db", folder, *arguments) as process:
        yield process


def run(*arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "leasekeeper", *arguments]
    given = {**os.environ, **{f"LEASEKEEPER_{name.upper()}": value for name, value in environ.items()}}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=given)


async def test_the_store_over_https_works_with_the_authority_of_its_own(
    secure: ServerProcess, signed: Certificates
) -> None:
    assert secure.url.startswith("https://")
    for host in ("localhost", "127.0.0.1"):
        store = await open_store(f"https://{host}:{secure.port}", token=secure.token, ca=str(signed.ca))
        await store.apply(fleet(profile("p1")), actor="ann")
        await store.close()
    await ServerEvidence(f"https://localhost:{secure.port}", secure.token, str(signed.ca)).check()


def test_the_command_line_works_over_https(secure: ServerProcess, signed: Certificates) -> None:
    url = f"https://localhost:{secure.port}"
    listed = run("--store", url, "profiles", "--json", token=secure.token, store_ca=str(signed.ca))
    assert listed.returncode == 0, listed.stderr
    assert isinstance(json.loads(listed.stdout), list | dict)
    wrong = run("--store", url, "profiles", token=secure.token)
    assert wrong.returncode != 0
    assert "certificate was not accepted" in wrong.stderr
    assert "store_ca" in wrong.stderr


async def test_another_authority_is_not_trusted_and_said_at_once(secure: ServerProcess, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other")
    # Patient for minutes: that it ends at all shows that it does not ask again.
    with pytest.raises(StoreUnavailable, match="certificate was not accepted"):
        await open_store(f"https://localhost:{secure.port}", token=secure.token, policy=PATIENT, ca=str(other.ca))
    with pytest.raises(EvidenceUnavailable):
        await ServerEvidence(f"https://localhost:{secure.port}", secure.token, str(other.ca)).check()
    with pytest.raises(InputError, match="store_ca"):
        await open_store(f"https://localhost:{secure.port}", token=secure.token, ca=str(other.key))


async def test_plain_http_and_tls_do_not_mix(secure: ServerProcess, served_port: int) -> None:
    with pytest.raises(StoreUnavailable, match="TLS handshake failed"):
        await open_store(f"https://127.0.0.1:{served_port}", token=secure.token, policy=PATIENT)
    quick = Policy(store_timeout=timedelta(seconds=0.3))
    with pytest.raises(StoreUnavailable, match="no response"):
        await open_store(f"http://127.0.0.1:{secure.port}", token=secure.token, policy=quick)


@pytest.fixture
def served_port(served: object) -> int:
    return int(str(getattr(served, "url")).split(":")[2].split("/")[0])  # noqa: B009 - of any server


def test_plain_http_is_refused_where_others_can_listen(sqlite_url: str) -> None:
    refused = run("--store", sqlite_url, "server", "--host", "0.0.0.0", "--port", "0")  # noqa: S104 - it is refused
    assert refused.returncode == 2
    assert "without TLS tokens would be readable" in refused.stderr
    calls = run("--store", "http://leases.example.com", "profiles", token="lk_x")  # noqa: S106 - nobody's
    assert calls.returncode == 2
    assert "needs https://" in calls.stderr


def test_whoever_says_that_tls_ends_before_it_may_serve_plain_http(sqlite_url: str, tmp_path: Path) -> None:
    arguments = ["--host", "0.0.0.0", "--behind-tls-proxy"]  # noqa: S104 - the flag allows it
    with ServerProcess(sqlite_url, tmp_path, *arguments) as process:
        assert httpx2.get(f"http://127.0.0.1:{process.port}/healthz").status_code == 200


def test_a_certificate_that_cannot_be_read_is_said(sqlite_url: str, signed: Certificates) -> None:
    arguments = ["--tls-cert", str(signed.ca), "--tls-key", str(signed.key)]
    failed = run("--store", sqlite_url, "server", "--port", "0", *arguments)
    assert failed.returncode == 2
    assert "certificate" in failed.stderr
    assert "Traceback" not in failed.stderr
