"""`deploy/nginx.conf` and `deploy/Caddyfile` in front of a real server, with TLS: what a worker, a reader of events and
a browser session send through them. Only names, ports and certificates are those of the test."""

import asyncio
import hashlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.evidence.server import ServerEvidence
from leasekeeper.ports import LeaseRequest
from leasekeeper.server_trust import trusted
from leasekeeper.service.guards import MAX_FAILURES
from leasekeeper.stores import open_store
from tests.conformance.world import fleet, profile
from tests.deploy.test_files import DEPLOY
from tests.service.certificates import Certificates, make_certificates
from tests.service.restarts import ServerProcess

# Larger than what a proxy takes by default.
LARGE = bytes(range(256)) * 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxied:
    """A server behind a proxy: the address of the proxy."""

    url: str
    port: int
    token: str
    ca: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def client(self, address: str = "127.0.0.1") -> httpx2.Client:
        """A client at one of the addresses of this machine."""
        transport = httpx2.HTTPTransport(verify=trusted(self.url, self.ca), local_address=address)
        return httpx2.Client(base_url=self.url, transport=transport, timeout=60)


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


def adapted(text: str, *pairs: tuple[str, str]) -> str:
    """The file with what differs here. Every pair has to be in it."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def nginx(folder: Path, upstream: int, port: int, signed: Certificates) -> list[str]:
    site = adapted(
        (DEPLOY / "nginx.conf").read_text(),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("127.0.0.1:7070", f"127.0.0.1:{upstream}"),
        ("leases.example.com;", "localhost;"),
        ("/etc/letsencrypt/live/leases.example.com/fullchain.pem", str(signed.cert)),
        ("/etc/letsencrypt/live/leases.example.com/privkey.pem", str(signed.key)),
    )
    own = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"pid {folder}/nginx.pid;\ndaemon off;\nworker_processes 1;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{own}{site}}}\n"
    )
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    assert program is not None
    return [program, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, upstream: int, port: int, signed: Certificates) -> list[str]:
    site = adapted(
        (DEPLOY / "Caddyfile").read_text(),
        ("leases.example.com {", f"https://localhost:{port} {{\n\ttls {signed.cert} {signed.key}"),
        ("127.0.0.1:7070", f"127.0.0.1:{upstream}"),
    )
    own = "{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n}\n"
    (folder / "Caddyfile").write_text(own + site)
    program = shutil.which("caddy")
    assert program is not None
    return [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@contextmanager
def running(command: list[str], folder: Path, port: int) -> Iterator[None]:
    """The proxy, once it accepts connections."""
    environ = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "PATH": "/usr/sbin:/usr/bin:/bin"}
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
    try:
        while True:
            assert process.poll() is None, (folder / "proxy.log").read_text()
            with socket.socket() as trial:
                trial.settimeout(0.2)  # waits: nobody says when it listens
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
        yield
    finally:
        process.kill()  # asked to stop, Caddy waits for streams to end
        process.wait(60)


@pytest.fixture(scope="module", params=[nginx, caddy], ids=lambda program: str(program.__name__))
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("proxied")
    signed = make_certificates(folder / "signed")
    port = free_port()
    data = {"LEASEKEEPER_DATA_DIR": str(folder / "data")}
    with ServerProcess(f"sqlite:///{folder}/leasekeeper.db", folder, "--allow-host", "localhost", **data) as server:
        command = request.param(folder, server.port, port, signed)
        with running(command, folder, port):
            url = f"https://localhost:{port}"
            yield Proxied(url=url, port=port, token=server.token, ca=str(signed.ca))


async def test_a_worker_works_through_it(proxied: Proxied, tmp_path: Path) -> None:
    store = await open_store(proxied.url, token=proxied.token, ca=proxied.ca)
    await store.apply(fleet(profile("p1")), actor="ann")
    request = LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId("w"), incarnation="w-1")
    lease = (await store.acquire(request)).lease
    await store.wait("default", timedelta(seconds=0.5))
    await asyncio.to_thread((tmp_path / "large.bin").write_bytes, LARGE)
    place = ServerEvidence(proxied.url, proxied.token, proxied.ca)
    key, digest = f"{lease.run_id}/large.bin", hashlib.sha256(LARGE).hexdigest()
    await place.put(
        key, tmp_path / "large.bin", size=len(LARGE), sha256=digest, media_type="text/plain", under=lease.ref
    )
    await store.close()


def test_events_arrive_as_they_happen(proxied: Proxied) -> None:
    with proxied.client() as client, client.stream("GET", "/v1/events/stream", headers=proxied.headers) as response:
        lines = response.iter_lines()
        while next(lines):
            pass
        body: dict[str, Any] = {"accounts": {"late": {}}}
        assert client.put("/v1/fleet", headers=proxied.headers, json=body).status_code == 200
        found = next(line for line in lines if line.startswith("data: "))
        assert json.loads(found.removeprefix("data: "))["type"] == "fleet_applied"


async def test_a_websocket_reaches_the_server(proxied: Proxied) -> None:
    """A path that only WebSockets have: an upgrade that did not arrive as one would not be found."""
    path = "/ui/runs/nothing/live/socket"
    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"wss://localhost:{proxied.port}{path}", ssl=trusted(proxied.url, proxied.ca)):
            pass
    assert refused.value.response.status_code == 401
    assert b"urn:leasekeeper:error" in (refused.value.response.body or b"")
    with proxied.client() as client:
        assert client.get(path).status_code == 404


def test_whoever_calls_is_known_by_their_own_address(proxied: Proxied) -> None:
    wrong = {"Authorization": "Bearer wrong"}
    with proxied.client("127.0.0.2") as other:
        for _ in range(MAX_FAILURES):
            assert other.get("/v1/stats", headers=wrong).status_code == 401
        # An address that the caller names itself is not believed.
        invented = {**wrong, "X-Forwarded-For": "127.0.0.9"}
        assert other.get("/v1/stats", headers=invented).status_code == 429
    with proxied.client() as client:
        assert client.get("/v1/stats", headers=wrong).status_code == 401


def test_links_and_cookies_are_for_https(proxied: Proxied) -> None:
    with proxied.client("127.0.0.4") as client:
        form = {"token": proxied.token}
        answer = client.post("/ui/sign-in", data=form, headers={"Origin": proxied.url}, follow_redirects=False)
        assert "secure" in answer.headers["set-cookie"].lower()
