"""The page "from a SET NX lock to leases", run: what the recipe loses under faults, and each step's answer to it.

Real Redis, real Chromium, a shop that holds an order open for as long as a test wants.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from leasekeeper.browsers.finding import find_browser
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.ids import ProfileId, WorkerId
from leasekeeper.core.settle import Browser, EndFacts, Ending, LostFacts
from leasekeeper.errors import ProfileBusy
from leasekeeper.ports import LeaseRequest, Renewal, Resolution
from leasekeeper.stores import open_store
from leasekeeper.wire.fleet import load_fleet
from tests.bridges.servers import RedisServer, until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/from_set_nx"
PAGE = b"""<!doctype html><title>shop</title><button id=order>order</button><script>
document.querySelector('#order').onclick = async () => {
    await fetch('/order' + location.search, {method: 'POST'});
    document.body.insertAdjacentHTML('beforeend', '<p id=placed>placed</p>');
};
</script>"""
JOBS = "shop:jobs"
TTL = 4


class Shop:
    """Counts orders. While it is closed, an order that begins is not answered."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.placed: list[str] = []
        self.open = threading.Event()
        self.together = self.most_together = 0
        self._lock = threading.Lock()
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(PAGE)

            def do_POST(self) -> None:
                shop.order(self.path.partition("?")[2])
                self._answer(b"{}")

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def order(self, job: str) -> None:
        with self._lock:
            self.begun.append(job)
            self.together += 1
            self.most_together = max(self.most_together, self.together)
        self.open.wait(240)
        with self._lock:
            self.together -= 1
            self.placed.append(job)

    def close(self) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()


class Team:
    """A folder with the example, a Redis, and the programs that a team starts."""

    def __init__(self, folder: Path, redis: RedisServer, shop: Shop) -> None:
        self.folder, self.shop = folder, shop
        self.client = Redis.from_url(redis.url, decode_responses=True)
        self.started: list[subprocess.Popen[bytes]] = []
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LEASEKEEPER_")},
            "REDIS_URL": redis.url,
            "PROFILES": str(folder / "recipe-profiles"),
            "BROWSER": str(find_browser(os.environ.get("LEASEKEEPER_BROWSER")).path),
            "LOCK_SECONDS": "2",
            "LEASEKEEPER_STORE": f"sqlite:///{folder}/leasekeeper.db",
            "LEASEKEEPER_LEASE_TTL": str(TTL),
            "LEASEKEEPER_RENEW_EVERY": "0.5",
            "LEASEKEEPER_HOLDER_STOPS_AFTER": "3",
            "LEASEKEEPER_LOCK_DELAY": "0.5",
            "LEASEKEEPER_SWEEP_EVERY": "0.5",
        }

    def push(self, job_id: str, profile_id: str = "p1") -> None:
        url = f"{self.shop.url}?{job_id}"
        job = {"job_id": job_id, "profile_id": profile_id, "task": "place_order", "payload": {"shop_url": url}}
        self.client.lpush(JOBS, json.dumps(job))

    def start(self, *arguments: str, **also: str) -> "subprocess.Popen[bytes]":
        with self.log(len(self.started)).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=self.folder, env=self.environ | also, stdout=log, stderr=log
            )
        self.started.append(process)
        return process

    def log(self, number: int) -> Path:
        return self.folder / f"program-{number}.log"

    def logs(self) -> str:
        return "\n".join(self.log(n).read_text(errors="replace") for n in range(len(self.started)))

    def asked(self, *arguments: str) -> Any:
        """What a command of ours answers, as JSON."""
        command = [sys.executable, "-m", "leasekeeper", *arguments, "--json"]
        done = subprocess.run(command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def until(self, condition: Any, what: str) -> None:
        try:
            until(condition, what, 200)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.logs()}") from None


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    folder = tmp_path / "team"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    with tempfile.TemporaryDirectory(prefix="lk-redis-", dir="/tmp") as directory:
        redis, shop = RedisServer(Path(directory)), Shop()
        redis.start()
        found = Team(folder, redis, shop)
        try:
            yield found
        finally:
            shop.close()
            for process in found.started:
                process.kill()
                process.wait()
            found.client.close()
            redis.kill()


def apply(team: Team) -> None:
    team.asked("apply", "fleet.yaml", "--yes")


@pytest.mark.timeout(600)
def test_the_recipe_lets_a_second_worker_in_and_forgets_the_job_of_a_dead_one(team: Team) -> None:
    """The lock expires under a slow job: a second worker, on another machine, is in a form of the same profile at the
    same time. On the same machine Chromium itself refuses to open the directory twice. Then the first worker is killed
    in the form: its job is in no list."""
    team.push("first")
    slow = team.start("step0_recipe.py", "A")
    team.until(lambda: team.shop.begun == ["first"], "A is in the form")
    team.push("second")
    team.start("step0_recipe.py", "B", PROFILES=str(team.folder / "other-machine"))
    team.until(lambda: team.shop.begun == ["first", "second"], "B is in the form too")
    assert slow.poll() is None
    assert (team.shop.most_together, team.shop.placed) == (2, [])
    slow.kill()
    slow.wait()
    assert team.client.lrange(JOBS, 0, -1) == []


def test_the_recipes_release_can_delete_the_lock_of_another_worker(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """GET says that it is A's, the lock expires, B takes it, DEL deletes B's."""
    monkeypatch.syspath_prepend(str(team.folder))
    import step0_recipe  # type: ignore[import-not-found]  # the example, found by the line above

    class Slow:
        """A worker that stands still between GET and DEL."""

        def get(self, key: str) -> str | None:
            found = team.client.get(key)
            team.client.delete(key)  # as its expiry does
            assert step0_recipe.try_lock(team.client, "p1", "B")
            return None if found is None else str(found)

        def delete(self, key: str) -> None:
            team.client.delete(key)

    assert step0_recipe.try_lock(team.client, "p1", "A")
    step0_recipe.unlock(Slow(), "p1", "A")
    assert step0_recipe.try_lock(team.client, "p1", "C")  # beside B


async def test_with_a_lease_a_late_release_frees_nothing(sqlite_url: str) -> None:
    """A stands still until its lease is over, a person clears the profile, B leases it. Then A releases."""
    later = timedelta(0)
    store = await open_store(sqlite_url, clock=lambda real: real + later)
    await store.apply(load_fleet(EXAMPLE / "fleet.yaml"), actor="ann")
    first, second, third = (
        LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId(name), incarnation=name) for name in "ABC"
    )
    late = await store.acquire(first)
    later = timedelta(minutes=5)
    (lost,) = await store.expire()
    later = timedelta(minutes=10)
    await store.resolve([Resolution(lease_id=lost.lease_id, facts=LostFacts())])
    cleared = Decision(target=Target.PROFILE, id="p1", action=Action.CLEAR, note="looked inside", actor="ann")
    await store.decide(cleared)
    held = await store.acquire(second)
    (released,) = await store.settle([Ending(ref=late.lease.ref, facts=EndFacts(browser=Browser.CLOSED))])
    assert released.refused is not None
    with pytest.raises(ProfileBusy):
        await store.acquire(third)
    (renewed,) = await store.renew([Renewal(ref=held.lease.ref)])
    assert renewed.refused is None
    await store.close()


@pytest.mark.timeout(600)
def test_with_a_lease_nobody_gets_in_however_slow_the_job_or_dead_its_worker(team: Team) -> None:
    apply(team)
    team.push("first")
    slow = team.start("step1_lease.py")
    team.until(lambda: team.shop.begun == ["first"], "A is in the form")
    (lease,) = team.asked("leases")["items"]
    team.push("second")
    team.start("step1_lease.py")
    team.until(lambda: "p1" in team.log(1).read_text(), "B was refused")
    team.until(lambda: team.asked("leases")["items"][0]["expires_at"] > lease["expires_at"], "the lease is renewed")
    assert (team.shop.begun, team.shop.most_together) == (["first"], 1)
    slow.kill()
    slow.wait()
    team.until(lambda: team.asked("profiles", "show", "p1")["lane"]["state"] == "quarantined", "p1 is out of rotation")
    assert "place_order" in json.dumps(team.asked("why", "profile", "p1"))
    team.shop.open.set()
    assert team.shop.begun == ["first"]  # nobody went on in a profile of which nobody knows what happened


@pytest.mark.timeout(600)
def test_with_bridge_and_tasks_no_job_is_lost_and_none_is_done_twice(team: Team) -> None:
    apply(team)
    team.push("first")
    team.push("second")
    team.push("third", "p2")
    team.start("-m", "leasekeeper", "bridge", "redis", "env:REDIS_URL", "--list", JOBS, "--name", "shop")
    team.until(lambda: team.asked("stats")["blocked"] == {"blocked_by_no_worker": 3}, "all jobs wait for a worker")
    assert team.client.llen(JOBS) == 0
    worker = team.start("-m", "leasekeeper", "up", "step2_tasks:app", "--concurrency", "2")
    team.until(lambda: sorted(team.shop.begun) == ["first", "third"], "both profiles are in their forms")
    worker.kill()
    worker.wait()
    team.shop.open.set()
    team.start("-m", "leasekeeper", "up", "step2_tasks:app", "--concurrency", "2")

    def states() -> dict[str, str]:
        return {job["job_id"]: job["state"] for job in team.asked("jobs")["items"]}

    expected = {"first": "review", "second": "blocked", "third": "review"}
    team.until(lambda: states() == expected, "each job waits for a person, or for its profile")
    assert sorted(team.shop.begun) == ["first", "third"]
    for profile in ("p1", "p2"):
        assert team.asked("profiles", "show", profile)["lane"]["state"] == "quarantined"
