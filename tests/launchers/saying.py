"""A launcher that only answers: no browser, no process. For what is decided by answers alone."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from leasekeeper.browsers.keeper.launcher_end import LauncherEnd
from leasekeeper.browsers.keeper.orders import Refused
from leasekeeper.browsers.launchers import describe
from leasekeeper.core.ids import LauncherId
from leasekeeper.core.launchers import Launcher
from tests.launchers.stage import RECIPE

TOKEN = "a-token-that-was-revoked"  # noqa: S105 - of a fake

_NOTHING = threading.Event()
_NOTHING.set()

Said = tuple[int, dict[str, str], Any]  # status, headers, body


class _Saying(BaseHTTPRequestHandler):
    server: "Saying"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        self.server.heard.append(dict(self.headers))
        self.server.hold.get(path, _NOTHING).wait(30)
        first = self.server.then.pop(0) if self.server.then else None
        status, headers, body = first or self.server.to.get(path, self.server.answer)
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
    """A launcher that says one thing to everything, or to each path of `to`, after what it says first: `then`.

    `hold`: answers of a path wait for the event.
    """

    answer: Said = (200, {}, {})

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Saying)
        self.then: list[Said] = []
        self.to: dict[str, Said] = {}
        self.hold: dict[str, threading.Event] = {}
        self.asked: list[str] = []
        self.heard: list[dict[str, str]] = []

    def record(self, driver: str, **more: Any) -> Launcher:
        url = f"http://127.0.0.1:{self.server_address[1]}"
        listing = {"list": {"path": "/list", "url": url, "items": "", "id": "id"}}
        calls = {**(RECIPE if driver == "http" else {}), **listing, **more}
        return Launcher(launcher_id=LauncherId("mlx"), driver=driver, url=url, calls=calls)

    def described(self, driver: str, **more: Any) -> dict[str, Any]:
        return describe(self.record(driver, **more), "id-1", headless=True, token=TOKEN)

    def refusal(self, driver: str) -> Refused:
        end = LauncherEnd(self.described(driver))
        with pytest.raises(Refused) as refused:
            end.start()
        return refused.value
