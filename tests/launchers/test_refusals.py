"""Calls that a launcher does not carry out: they are the launcher's matter, never the profile's or the job's."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from leasekeeper.browsers.keeper.attached import LauncherEnd
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.browsers.launchers import describe
from leasekeeper.core.failures import Reason
from leasekeeper.core.ids import LauncherId
from leasekeeper.core.launchers import Launcher
from leasekeeper.errors import InputError
from leasekeeper.evidence.redact import Redactor
from leasekeeper.runtime.inventory import inventory
from leasekeeper.runtime.launchers import Launchers, pace_key
from leasekeeper.stores import open_store

TOKEN = "a-token-that-was-revoked"  # noqa: S105 - of a fake


class _Saying(BaseHTTPRequestHandler):
    server: "Saying"

    def do_GET(self) -> None:
        status, headers, body = self.server.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, ARG002 - the base class's
        return


class Saying(ThreadingHTTPServer):
    """A launcher that says one thing to everything."""

    answer: tuple[int, dict[str, str], Any] = (200, {}, {})

    def record(self, driver: str) -> Launcher:
        url = f"http://127.0.0.1:{self.server_address[1]}"
        calls = {"list": {"path": "/list", "url": url, "items": "", "id": "id"}}
        return Launcher(launcher_id=LauncherId("mlx"), driver=driver, url=url, calls=calls)

    def refusal(self, driver: str) -> Refused:
        end = LauncherEnd(describe(self.record(driver), "p", headless=True, token=TOKEN))
        with pytest.raises(Refused) as refused:
            end.start()
        return refused.value


@pytest.fixture
def saying() -> Iterator[Saying]:
    server = Saying(("127.0.0.1", 0), _Saying)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("driver", "status", "body", "says"),
    [
        ("gologin", 401, {"message": f"jwt {TOKEN} is revoked"}, "start was refused: jwt [redacted] is revoked"),
        ("gologin", 429, {}, "too many requests"),
        ("adspower", 200, {"code": -1, "msg": "Too many request per second, please check"}, "not now, says the"),
        ("multilogin", 503, {"status": {"message": "agent restarts"}}, "agent restarts"),
    ],
)
def test_what_is_wrong_with_a_launcher_or_its_token_is_not_the_jobs_failure(
    saying: Saying, driver: str, status: int, body: object, says: str
) -> None:
    saying.answer = (status, {}, body)
    refused = saying.refusal(driver)
    assert (refused.reason, says in str(refused)) == (Reason.LAUNCHER_UNAVAILABLE, True), str(refused)


def test_a_start_that_is_refused_for_the_profile_fails_the_run(saying: Saying) -> None:
    saying.answer = (400, {}, {"message": "no such profile"})
    assert saying.refusal("gologin").reason == Reason.BROWSER_LAUNCH_FAILED


async def test_after_a_refusal_starts_come_one_by_one_without_a_declared_limit(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that were all refused at once would all come back at once."""
    slept = list[float]()

    async def note(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("leasekeeper.runtime.launchers.sleep", note)
    store = await open_store(sqlite_url, clock=lambda _real: datetime(2026, 1, 1, tzinfo=UTC))
    launcher = Launcher(launcher_id=LauncherId("mlx"), driver="http")
    workers = [Launchers(store, Redactor()) for _ in range(3)]
    for worker in workers:
        await worker.turn(launcher)
    for worker in workers:
        await worker.back_off(launcher, Reason.LAUNCHER_UNAVAILABLE)
    for worker in workers:
        await worker.turn(launcher)
    assert slept == [0, 0, 0, 2, 3, 4]
    await store.close()


async def test_a_list_that_is_one_call_too_many_pauses_the_starts_of_everybody(sqlite_url: str, saying: Saying) -> None:
    store = await open_store(sqlite_url, clock=lambda _real: datetime(2026, 1, 1, tzinfo=UTC))
    launcher = saying.record("http")
    saying.answer = (429, {"Retry-After": "30"}, {})
    with pytest.raises(InputError, match=r"launcher mlx: .* too many requests"):
        await inventory(store, launcher)
    assert await store.pace(pace_key(launcher), timedelta()) == timedelta(seconds=30)
    await store.close()
