"""Evidence over HTTP: uploaded under a live lease of the token's own, and served so that it can do no harm."""

import asyncio
import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from leasekeeper import config as settings
from leasekeeper.core.events import Event
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.leases import Lease
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.errors import EvidenceRefused, EvidenceUnavailable, LeaseLost, NotFound
from leasekeeper.evidence.files import EvidenceFolder
from leasekeeper.evidence.server import ServerEvidence
from leasekeeper.ports import LeaseRequest, Store
from leasekeeper.service.routes import evidence as routes
from leasekeeper.stores import open_store
from tests.conformance.world import fleet, profile
from tests.evidence.test_uploads import new_app
from tests.runtime.browsing import House
from tests.serving import Served, ServerThread

PICTURE = b"\x89PNG not really"


class Clock:
    """The store's, and how far it is ahead of the real one."""

    ahead = timedelta(0)

    def now(self, real: datetime) -> datetime:
        return real + self.ahead


class Site:
    """A served store with a worker's token, and a lease that this worker holds."""

    def __init__(self, served: Served, folder: Path, clock: Clock) -> None:
        self.served = served
        self.clock = clock
        self.folder = folder
        self.token = served.new_token("work", "read")
        self.run(served.store.apply(fleet(profile("p1"), profile("p2", account_id="other")), actor="test"))
        self.lease = self.leased()

    def run(self, work: Any) -> Any:
        return self.served.run(work)

    def leased(self, profile_id: str = "p1", text: str | None = None) -> Lease:
        token_id = (text or self.token).split("_")[1]
        request = LeaseRequest(profile_id=ProfileId(profile_id), worker_id=WorkerId("w"), incarnation=f"{token_id}/w-1")
        lease: Lease = self.run(self.served.store.acquire(request)).lease
        return lease

    @property
    def place(self) -> ServerEvidence:
        return ServerEvidence(self.served.url, self.token)

    async def put(self, name: str, data: bytes, media_type: str = "image/png", **wrong: Any) -> None:
        """Upload as a worker does."""
        source = self.folder / "source"
        await asyncio.to_thread(source.write_bytes, data)
        facts = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "under": self.lease.ref, **wrong}
        await self.place.put(f"{self.lease.run_id}/{name}", source, media_type=media_type, **facts)

    def end(self, *artifacts: dict[str, object]) -> None:
        """Settle the run with these files in its record."""
        record = {"folder": self.lease.run_id, "place": "server", "artifacts": list(artifacts)}
        facts = EndFacts(browser=Browser.NONE)
        (settled,) = self.run(self.served.store.settle([Ending(ref=self.lease.ref, facts=facts, evidence=record)]))
        assert settled.refused is None

    def request(self, method: str, path: str, text: str | None = None, **more: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {text or self.token}"}
        return httpx2.request(method, f"{self.served.url}{path}", headers=headers, **more)

    def upload(self, text: str | None = None, *, name: str = "a.png", **wrong: Any) -> httpx2.Response:
        """The bare request."""
        facts = {
            "run_id": self.lease.run_id,
            "token": str(self.lease.token),
            "routing_key": self.lease.routing_key,
            "sha256": hashlib.sha256(PICTURE).hexdigest(),
            **wrong,
        }
        path = f"/v1/leases/{self.lease.lease_id}/evidence/{name}"
        return self.request("PUT", path, text, params=facts, content=PICTURE)

    def kept(self) -> list[str]:
        folder = self.folder / "leasekeeper-data" / "runs"
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def site(server: ServerThread, sqlite_url: str, tmp_path: Path) -> Iterator[Site]:
    clock = Clock()
    served = server.serve(sqlite_url, clock=clock.now)
    yield Site(served, tmp_path, clock)
    served.close()


def artifact(name: str, data: bytes, media_type: str = "image/png") -> dict[str, object]:
    return {"name": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "media_type": media_type}


async def content(place: ServerEvidence, key: str) -> bytes:
    return b"".join([chunk async for chunk in place.get(key)])


async def test_what_a_worker_uploads_is_read_by_whoever_may_read_the_run(site: Site) -> None:
    large = bytes(range(256)) * 20_000
    await site.place.check()
    await site.put("final.png", PICTURE)
    await site.put("final.png", PICTURE)
    await site.put("trace.zip", large, "application/zip")
    site.end(artifact("final.png", PICTURE), artifact("trace.zip", large, "application/zip"))
    run_id = site.lease.run_id
    assert site.kept() == [f"{run_id}/final.png", f"{run_id}/trace.zip"]
    reader = ServerEvidence(site.served.url, site.served.new_token("read"))
    assert await content(reader, f"{run_id}/final.png") == PICTURE
    assert await content(reader, f"{run_id}/trace.zip") == large
    with pytest.raises(NotFound, match=r"it has: final\.png, trace\.zip"):
        await content(reader, f"{run_id}/other.png")
    data = site.folder / "leasekeeper-data"
    assert list((data / "incoming").iterdir()) == []
    assert {path.stat().st_mode & 0o777 for path in (data, data / "incoming", data / "runs")} == {0o700}


def test_a_file_is_served_as_an_attachment_in_a_sandbox(site: Site) -> None:
    page = b"<script>alert(document.cookie)</script>"
    folder = EvidenceFolder(site.folder / "leasekeeper-data" / "runs", site.lease.run_id)
    folder.create()
    folder.write("page.html", page)
    folder.write("final.png", PICTURE)
    site.end(artifact("page.html", page, "text/html"), artifact("final.png", PICTURE))
    for name, media in (("page.html", "application/octet-stream"), ("final.png", "image/png")):
        answer = site.request("GET", f"/v1/runs/{site.lease.run_id}/evidence/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == media
        assert answer.headers["content-disposition"] == f'attachment; filename="{site.lease.run_id}_{name}"'
        assert "sandbox" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_late_upload_is_refused_and_recorded(site: Site) -> None:
    late = site.lease
    site.end()
    with pytest.raises(LeaseLost):
        await site.put("final.png", PICTURE)
    site.lease = site.leased()
    assert site.upload(token=str(late.token)).json()["code"] == "STALE_WORKER_WRITE_REJECTED"
    assert site.upload(run_id=late.run_id).status_code == 410
    assert site.upload(routing_key="profile:p2").status_code == 410
    page = site.run(site.served.store.find(Event, {"type": "stale_worker_write_rejected"}))
    assert [event.data["write"] for event in page.items] == ["evidence"] * 4
    assert site.kept() == []


def test_nobody_writes_under_the_lease_of_another_token(site: Site) -> None:
    other = site.served.new_token("work")
    assert site.upload(other).json()["code"] == "LEASE_OF_ANOTHER_TOKEN"
    assert site.upload(site.served.new_token("read")).json()["code"] == "SCOPE_MISSING"
    assert site.upload("lk_nobody").status_code == 401
    assert site.kept() == []


def test_nobody_reads_the_evidence_of_an_account_that_is_not_theirs(site: Site) -> None:
    site.end(artifact("final.png", PICTURE))
    narrow = site.served.new_token("read", accounts=["other"])
    answer = site.request("GET", f"/v1/runs/{site.lease.run_id}/evidence/final.png", narrow)
    assert answer.json()["code"] == "ACCOUNT_NOT_ALLOWED"


@pytest.mark.parametrize("name", ["..", ".hidden", "a%2Fb", "%2e%2e%2fpasswd", "a b"])
def test_a_name_leads_nowhere_else(site: Site, name: str) -> None:
    assert site.upload(name=name).status_code in (400, 404, 405)
    assert site.kept() == []


async def test_what_did_not_arrive_whole_or_is_too_large_is_not_kept(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EvidenceRefused, match="did not arrive whole"):
        await site.put("final.png", PICTURE, sha256="0" * 64)
    assert site.upload(sha256="nonsense").json()["problems"][0]["where"] == "sha256"
    monkeypatch.setattr(routes, "MAX_BYTES", 4)
    assert site.upload().status_code == 413
    assert site.kept() == []
    assert list((site.folder / "leasekeeper-data" / "incoming").iterdir()) == []


async def test_only_the_keepers_screenshot_comes_after_the_lease(site: Site) -> None:
    site.clock.ahead = timedelta(hours=1)
    assert site.upload().status_code == 410  # overdue: nobody has ended it yet
    now = site.run(site.served.store.check()).now
    assert len(site.run(site.served.store.expire(seen=now))) == 1
    assert site.upload().status_code == 410
    assert site.upload(name="last.png", token=str(10**9)).status_code == 410
    await site.put("last.png", PICTURE)
    assert site.kept() == [f"{site.lease.run_id}/last.png"]


async def test_a_server_that_is_away_is_unavailable_and_lists_nothing(site: Site, tmp_path: Path) -> None:
    away = ServerEvidence("http://127.0.0.1:1", "lk_none")
    with pytest.raises(EvidenceUnavailable, match="no response"):
        await away.check()
    with pytest.raises(EvidenceUnavailable, match="no response"):
        await content(away, "a/b")
    with pytest.raises(EvidenceRefused, match="itself"):
        await away.delete(["a/b"])
    with pytest.raises(EvidenceRefused, match="itself"):
        [entry async for entry in away.entries()]
    with pytest.raises(EvidenceRefused, match="only under a lease"):
        await site.put("final.png", PICTURE, under=None)


class Remote(House):
    """A worker that has a URL and a token."""

    async def open_store(self) -> Store:
        return await open_store(self.config.store, policy=self.config.policy, token=self.config.token)


async def test_a_remote_worker_delivers_to_the_server(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    served = await asyncio.to_thread(server.serve, sqlite_url)
    token = await asyncio.to_thread(served.new_token, "work", "read", "submit")
    await asyncio.to_thread(served.run, served.store.apply(fleet(profile("p1", driver="null")), actor="test"))
    data = tmp_path / "worker"
    config = settings.load({}, store=served.url, token=token, data_dir=str(data), drivers="null", poll_every=0.1)
    store = await open_store(config.store, policy=config.policy, token=token)
    try:
        home = Remote(app=new_app(), config=config, store=store, data=data)
        job = await home.submit("leave")
        (done,) = await home.do(job)
        run = await home.run_of(job)
        record: Any = run.evidence
        assert (done.state, record["place"]) == ("completed", "server")
        kept = tmp_path / "leasekeeper-data" / "runs" / run.run_id
        assert (kept / "order.txt").read_text() == "order 42"
        assert not (home.evidence(run) / "order.txt").exists()
        assert await content(ServerEvidence(served.url, token), f"{run.run_id}/order.txt") == b"order 42"
    finally:
        await store.close()
        await asyncio.to_thread(served.close)
