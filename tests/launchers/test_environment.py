"""A launcher sets language, time zone, proxy and engine of its browser: what a page sees is compared with the fleet."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.app import App, Run
from leasekeeper.core.accounts import Proxy
from leasekeeper.core.ids import ProfileId, ProxyId, WorkerId
from leasekeeper.core.settle import Browser, EndFacts, Ending
from leasekeeper.ports import LeaseRequest
from tests.launchers.stage import Fake, launched, launched_house


class _WhereAmI(BaseHTTPRequestHandler):
    """Says US to whoever asks through it as a proxy, DE to a browser that has none."""

    def do_GET(self) -> None:
        body = b'{"country": "US"}' if self.path.startswith("http://") else b'{"country": "DE"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, ARG002 - the base class's
        return


@pytest.fixture
def where_am_i() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _WhereAmI)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


async def test_a_browser_that_is_not_what_the_profile_is_declared_to_be_gets_no_task(
    sqlite_url: str, tmp_path: Path, recipe: Fake, where_am_i: str
) -> None:
    app, ran = App(), list[str]()

    @app.task("visit")
    async def visit(run: Run) -> None:
        ran.append(run.profile_id)

    exit_us = Proxy(proxy_id=ProxyId("exit_us"), server=where_am_i, region="US")
    fields: dict[str, dict[str, Any]] = {
        "right": {"language": "en-US"},
        "language": {"language": "de-DE"},
        "timezone": {"timezone": "Asia/Tokyo"},
        "engine": {},
        "region": {"proxy_id": "exit_us"},
    }
    profiles = [launched(name, warm=False, **more) for name, more in fields.items()]
    async with launched_house(
        app, sqlite_url, tmp_path, recipe, *profiles, exit_us, probe_url=f"{where_am_i}/me"
    ) as home:
        # An earlier run of this profile saw a newer engine.
        grant = await home.store.acquire(
            LeaseRequest(profile_id=ProfileId("engine"), worker_id=WorkerId("w"), incarnation="i")
        )
        before = Ending(
            ref=grant.lease.ref,
            facts=EndFacts(browser=Browser.CLOSED, final_url="about:blank"),
            actual={"browser": "999.0.0.0"},
        )
        await home.store.settle([before])
        jobs = {name: await home.submit("visit", profile_id=name) for name in fields}
        done = dict(zip(jobs, await home.do(*jobs.values()), strict=True))
        assert ran == ["right"]
        assert done["right"].state == "completed"
        run: Any = await home.run_of(jobs["right"])
        assert int(run.actual["browser"].partition(".")[0]) > 90
        assert run.actual["language"] == "en-US"
        says = {
            "language": "the page sees language en-US, profile language is declared with de-DE",
            "timezone": "profile timezone is declared with Asia/Tokyo",
            "engine": "profile engine was last opened by 999",
            "region": "a page exits elsewhere than proxy exit_us is declared: expected US, seen country DE",
        }
        for name, text in says.items():
            run = await home.run_of(jobs[name])
            assert (run.stop_reason, text in run.message) == ("PROFILE_MISMATCH", True), run.message
            assert (await home.lane(name)).state == "review_required"
