"""A launcher for tests: a process that starts real Chromium and answers in one vendor's shape. It prints its port.

Faults are ordered with POST /_fault {"step": "start", "fault": "slow"}; GET /_log has every call, GET /_peak how many
browsers ran at once. LAUNCHER_PLAN in its environment is the cap that it tells.

Faults: busy, 429, slow (answers after 1 s), lost (once: does it, and cuts the connection), half_open (half an answer
comes), refuse (500), wrong_json, no_endpoint, dead_endpoint (started, and killed before the answer), crashed (killed
right after the answer), nothing (says yes, does nothing).
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic", "--remote-debugging-port=0",
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup",
]  # fmt: skip


class Browsers:
    """The profiles of this launcher: one real browser each while it runs."""

    def __init__(self, folder: Path, browser: str) -> None:
        self.folder = folder
        self.browser = browser
        self.lock = threading.Lock()
        self.running: dict[str, tuple[subprocess.Popen[bytes], str]] = {}
        self.peak = 0

    def active(self, profile: str) -> bool:
        with self.lock:
            found = self.running.get(profile)
            if found is not None and found[0].poll() is not None:
                del self.running[profile]
                return False
            return found is not None

    def start(self, profile: str) -> str | None:
        """The browser's WebSocket; None if it runs already."""
        if self.active(profile):
            return None
        directory = self.folder / profile
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "DevToolsActivePort").unlink(missing_ok=True)
        process = subprocess.Popen(
            [self.browser, *FLAGS, f"--user-data-dir={directory}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while not (found := _lines(directory / "DevToolsActivePort")):
            if process.poll() is not None:
                raise RuntimeError("the browser did not start")
            time.sleep(0.02)  # waits: for the browser to say its port
        port, path = found
        url = f"ws://127.0.0.1:{port}{path}"
        with self.lock:
            self.running[profile] = (process, url)
            self.peak = max(self.peak, sum(each.poll() is None for each, _ in self.running.values()))
        return url

    def stop(self, profile: str) -> bool:
        with self.lock:
            found = self.running.pop(profile, None)
        if found is None:
            return False
        found[0].terminate()
        try:
            found[0].wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(found[0].pid, signal.SIGKILL)
            found[0].wait()
        return True


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text().split()
    except OSError:
        return []
    return lines if len(lines) == 2 else []


# How each vendor lists its profiles: the path, and the items in its own shape.
PROFILES = [(f"id-p{number}", f"shop {number}") for number in range(1, 4)]
LISTS: dict[str, Any] = {
    "/profile/search": lambda: {"data": {"profiles": [{"id": key, "name": name} for key, name in PROFILES]}},
    "/api/v1/user/list": lambda: {
        "code": 0, "data": {"list": [{"user_id": key, "name": name} for key, name in PROFILES]},
    },
    "/browser/v2": lambda: {"profiles": [{"id": key, "name": name} for key, name in PROFILES]},
    "/browser_profiles": lambda: {"data": [{"id": key, "name": name} for key, name in PROFILES]},
    "/general/user-info": lambda: {
        "runningUserProfiles": {"total": {"currentUsage": 0, "maximumLimit": int(os.environ["LAUNCHER_PLAN"])}}
    },
    "/profiles": lambda: [{"id": key, "name": name} for key, name in PROFILES],
}  # fmt: skip


def multilogin(handler: "Handler", path: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
    def said(code: int, error: str = "", data: Any = None) -> tuple[int, Any]:
        return code, {"data": data, "status": {"error_code": error, "http_code": code, "message": error}}

    if path[-1] == "start":
        assert path[:4] == ["api", "v2", "profile", "f"]
        assert query["automation_type"] == "playwright"
        url = handler.begin(path[-2])
        return said(200, data={"port": str(urlsplit(url).port)}) if url else said(400, "PROFILE_ALREADY_RUNNING")
    if path[-1] == "stop":
        return said(200) if handler.end(query["profile_id"]) else said(400, "PROFILE_ALREADY_STOPPED")
    return said(200, data={name: {"status": "running"} for name in handler.all_active()})


def adspower(handler: "Handler", path: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
    if path[-1] == "cloud-active":
        ids = [name for name in body["user_ids"].split(",") if handler.active(name)]
        return 200, {"code": 0, "msg": "success", "data": [{"user_id": name, "account": "ann"} for name in ids]}
    profile = (body or query)["profile_id"]
    if path[-1] == "start":
        assert body["headless"] in ("0", "1")
        url = handler.begin(profile)
        if url is None:
            return 200, {"code": -1, "msg": f"{profile} is being used by another user"}
        return 200, {"code": 0, "msg": "success", "data": {"ws": {"puppeteer": url}, "debug_port": ""}}
    if path[-1] == "stop":
        ended = handler.end(profile)
        return 200, {"code": 0, "msg": "success"} if ended else {"code": -1, "msg": "profile is not open"}
    return 200, {"code": 0, "data": {"status": "Active" if handler.active(profile) else "Inactive"}, "msg": ""}


def gologin(handler: "Handler", path: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
    if path[-1] == "start-profile":
        assert body["sync"] is True
        url = handler.begin(body["profileId"])
        return (200, {"status": "success", "wsUrl": url}) if url else (400, {"message": "profile is already running"})
    handler.end(body["profileId"])
    return 200, {"status": "success"}


def dolphin(handler: "Handler", path: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
    profile = path[-2]
    if path[-1] == "start":
        url = handler.begin(profile)
        if url is None:
            return 400, {"success": False, "errorObject": {"code": "E_BROWSER_RUN_DUPLICATE", "text": "duplicate"}}
        parts = urlsplit(url)
        return 200, {"success": True, "automation": {"port": parts.port, "wsEndpoint": parts.path}}
    if path[-1] == "stop":
        return (200, {"success": True}) if handler.end(profile) else (404, {"success": False})
    return 200, {"active": handler.active(profile)}


def kameleo(handler: "Handler", path: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
    profile = path[1]
    if path[-1] == "start":
        url = handler.begin(profile)
        busy = {"title": "profile is running", "errorCode": "profile_running"}
        return (200, {"lifetimeState": "running"}) if url else (409, busy)
    if path[-1] == "stop":
        handler.end(profile)
        return 200, {"lifetimeState": "terminated"}
    return 200, {"lifetimeState": "running" if handler.active(profile) else "created"}


def plain(handler: "Handler", path: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
    """The launcher of the recipe: POST /profile/start {profile_id, headless} → cdp_url."""
    if path[-1] == "start":
        assert isinstance(body["headless"], bool)
        url = handler.begin(body["profile_id"])
        return (200, {"cdp_url": url}) if url else (409, {"error": "already running"})
    if path[-1] == "stop":
        return 200, {"stopped": handler.end(body["profile_id"])}
    return 200, {"running": handler.active(query["profile_id"])}


VENDORS = {
    "multilogin": multilogin, "adspower": adspower, "gologin": gologin, "dolphin": dolphin, "kameleo": kameleo,
    "http": plain,
}  # fmt: skip
STEPS = {"start": "start", "start-profile": "start", "stop": "stop", "stop-profile": "stop"}


class Handler(BaseHTTPRequestHandler):
    """One request. `fault` is what was ordered for its step."""

    protocol_version = "HTTP/1.1"
    server: "Launcher"

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, ARG002 - the base class's
        return

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        path = [part for part in parts.path.split("/") if part]
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body: Any = json.loads(text) if text else None
        if path[0].startswith("_"):
            return self._control(path[0], body)
        if path[0] == "playwright":
            return self._tunnel(path[1])
        step = STEPS.get(path[-1], "status")
        self.server.log.append([time.time(), step])
        self.fault = self.server.faults.get(step, "")
        if (refusal := self._refusal()) is not None:
            return self._send(*refusal)
        if parts.path in LISTS:
            return self._send(200, LISTS[parts.path]())
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        code, answer = VENDORS[self.server.vendor](self, path, query, body)
        if self.fault == "slow":
            time.sleep(1)  # waits: that is the fault
        if self.fault == "lost":
            del self.server.faults[step]
            self.close_connection = True
            return None
        if self.fault == "no_endpoint":
            answer = {}
        self._send(code, "<html>" if self.fault == "wrong_json" else answer)
        if self.fault == "crashed":
            for profile in list(self.server.browsers.running):
                self.server.browsers.stop(profile)
        return None

    def _control(self, name: str, body: Any) -> None:
        if name == "_fault":
            self.server.faults[body["step"]] = body["fault"]
        self._send(200, {"_log": self.server.log, "_peak": self.server.browsers.peak}.get(name, {}))

    def _refusal(self) -> tuple[int, Any] | None:
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return 401, {"message": "wrong token"}
        if self.fault == "429":
            return 429, {"message": "too many requests"}
        return (500, {"message": "internal error"}) if self.fault == "refuse" else None

    def begin(self, profile: str) -> str | None:
        if self.fault == "busy":
            return None
        url = self.server.browsers.start(profile)
        if self.fault == "dead_endpoint":
            self.server.browsers.stop(profile)
        return url

    def end(self, profile: str) -> bool:
        return True if self.fault == "nothing" else self.server.browsers.stop(profile)

    def active(self, profile: str) -> bool:
        return self.server.browsers.active(profile)

    def all_active(self) -> list[str]:
        return [name for name in list(self.server.browsers.running) if self.active(name)]

    def _send(self, code: int, answer: Any) -> None:
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        if getattr(self, "fault", "") == "half_open":
            self.wfile.write(data[: len(data) // 2])
            threading.Event().wait(120)
        self.wfile.write(data)
        self.close_connection = True

    def _tunnel(self, profile: str) -> None:
        """Kameleo's own DevTools address: everything goes to the browser's."""
        found = self.server.browsers.running.get(profile)
        if found is None:
            return self._send(404, {})
        parts = urlsplit(found[1])
        there = socket.create_connection((parts.hostname, parts.port))
        head = f"GET {parts.path} HTTP/1.1\r\nHost: 127.0.0.1:{parts.port}\r\n"
        head += "".join(f"{k}: {v}\r\n" for k, v in self.headers.items() if k.lower() != "host")
        there.sendall(head.encode() + b"\r\n")
        here = self.connection
        self.close_connection = True
        while True:
            ready, _, _ = select.select([here, there], [], [])
            for source, sink in ((here, there), (there, here)):
                if source in ready:
                    data = source.recv(65536)
                    if not data:
                        there.close()
                        return None
                    sink.sendall(data)


class Launcher(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, vendor: str, folder: Path, browser: str, port: int, token: str) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.vendor = vendor
        self.token = token
        self.browsers = Browsers(folder, browser)
        self.faults: dict[str, str] = {}
        self.log: list[list[Any]] = []


def main() -> None:
    vendor, folder, browser, port, token = sys.argv[1:]
    launcher = Launcher(vendor, Path(folder), browser, int(port), token)
    sys.stdout.write(f"{launcher.server_address[1]}\n")
    sys.stdout.flush()
    launcher.serve_forever()


if __name__ == "__main__":
    main()
