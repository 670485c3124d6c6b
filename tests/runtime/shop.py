"""A small shop on loopback that remembers who asked for what and when, and sets what a session lives in.

What a page does by itself or at a click, it says when it did: the shop may come to hear of it much later.
"""

import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

PAGE = """<!doctype html><title>{title}</title><h1>{title}</h1>
<button id=go onclick="tell('/act', {{method: 'POST'}})">go</button>
<script>
window.tell = (path, how) =>
    fetch(`${{path}}?by=${{encodeURIComponent(document.title)}}&sent=${{Date.now() / 1000}}`, how);
window.remember = async (key, value) => {{
    document.cookie = `${{key}}=${{value}}; max-age=100000`;
    localStorage.setItem(key, value);
    const db = await new Promise((done, fail) => {{
        const asked = indexedDB.open('shop', 1);
        asked.onupgradeneeded = () => asked.result.createObjectStore('kept');
        asked.onsuccess = () => done(asked.result);
        asked.onerror = () => fail(asked.error);
    }});
    await new Promise(done => {{
        const change = db.transaction('kept', 'readwrite');
        change.objectStore('kept').put(value, key);
        change.oncomplete = done;
    }});
    db.close();
}};
window.recall = async key => {{
    const db = await new Promise(done => {{
        const asked = indexedDB.open('shop', 1);
        asked.onupgradeneeded = () => asked.result.createObjectStore('kept');
        asked.onsuccess = () => done(asked.result);
    }});
    const kept = await new Promise(done => {{
        const asked = db.transaction('kept').objectStore('kept').get(key);
        asked.onsuccess = () => done(asked.result ?? null);
    }});
    db.close();
    const cookie = document.cookie.split('; ').find(c => c.startsWith(key + '='));
    return {{cookie: cookie ? cookie.split('=')[1] : null, local: localStorage.getItem(key), indexed: kept}};
}};
</script>{more}"""

# A page that goes on by itself, as real ones do: only ending the browser ends it.
TICKING = "<script>setInterval(() => tell('/tick'), 100)</script>"
# Stores something, then says so.
REMEMBERING = "<script>remember('who', {value}).then(() => tell('/act', {{method: 'POST'}}))</script>"


@dataclass(frozen=True)
class Hit:
    """One request: when the page sent it, or if it does not say so when it came, for what, and by whom as it says."""

    at: float
    path: str
    by: str


async def press(page: Any) -> None:
    """Click the button, and wait until the shop has heard of it: a page that is left takes back what is under way."""
    async with page.expect_response(lambda answer: urlsplit(answer.url).path == "/act"):
        await page.click("#go")


class _Server(ThreadingHTTPServer):
    """Its threads have a name by which a worker in the same process does not take them for a task's: browsers keep
    connections open that they may need."""

    daemon_threads = True

    def process_request(self, request: Any, client_address: Any) -> None:
        serve = self.process_request_thread
        threading.Thread(target=serve, args=(request, client_address), name="leasekeeper-shop", daemon=True).start()


class Shop:
    """Use as a context manager. `hits` grows as browsers come."""

    def __init__(self) -> None:
        self.hits: list[Hit] = []
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                shop.answer(self)

            def do_POST(self) -> None:
                shop.answer(self)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        address = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        self.hits.append(Hit(float(query.get("sent", time.time())), address.path, query.get("by", "")))
        if address.path == "/slow":
            time.sleep(float(query.get("seconds", "5")))  # waits: this page is slow, that is its purpose
        more = TICKING if address.path == "/ticking" else ""
        if address.path == "/remembering":
            more = REMEMBERING.format(value=json.dumps(query["value"]))
        if address.path == "/security":
            more = "<p id=prompt>Please confirm that it is you</p>"
        title = query.get("title", "shop")
        body = PAGE.format(title=title, more=more).encode()
        if address.path in ("/act", "/tick"):
            body = json.dumps({"ok": True}).encode()
        script = address.path == "/sw.js"
        if script:
            body = b"self.addEventListener('fetch', () => {});"
        with suppress(OSError):  # a killed browser does not wait for its answer
            request.send_response(404 if address.path == "/missing" else 200)
            request.send_header("Content-Type", "text/javascript" if script else "text/html; charset=utf-8")
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)

    def of(self, by: str, path: str = "") -> list[Hit]:
        """What came in somebody's name."""
        return [hit for hit in list(self.hits) if hit.by == by and hit.path.startswith(path)]

    def of_any(self, path: str) -> list[Hit]:
        """What came for a path, in whose name ever."""
        return [hit for hit in list(self.hits) if hit.path == path]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
