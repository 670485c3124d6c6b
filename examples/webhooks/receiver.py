"""A receiver of Leasekeeper's webhooks: `WEBHOOK_SECRET=whsec_… python receiver.py`, then POST to http://127.0.0.1:9000/.

It needs nothing but the standard library. A real one would keep the ids that it has seen where they outlive it.
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MAX_BYTES = 1_000_000
OLDEST_SECONDS = 300


def is_genuine(key: bytes, message_id: str, timestamp: str, signatures: str, body: bytes) -> bool:
    """Whether the message was signed with the secret, and lately."""
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > OLDEST_SECONDS:
        return False
    mark = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    expected = b"v1," + base64.b64encode(mark)
    return any(hmac.compare_digest(each.encode(), expected) for each in signatures.split())


class Hook(BaseHTTPRequestHandler):
    """Checks a message, prints it, and answers. Only an answer of the 200s counts as received."""

    key = b""
    seen: set[str] = set()  # noqa: RUF012 - one memory for all requests

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        if not 0 <= length <= MAX_BYTES:
            self.send_error(413)
            return
        body = self.rfile.read(length)
        message_id, timestamp, signatures = (
            self.headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature")
        )
        if not is_genuine(self.key, message_id, timestamp, signatures, body):
            self.send_error(401, "not signed with this secret, or too old")
            return
        if message_id not in self.seen:  # a message may come twice, always with the same id
            message = json.loads(body)
            print(message["type"], message["data"]["job_id"], flush=True)
            self.seen.add(message_id)
        self.send_response(204)
        self.end_headers()


def key_of(secret: str) -> bytes:
    """The key that a secret stands for."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if not secret.startswith("whsec_") or not key:
        sys.exit("set WEBHOOK_SECRET to what LEASEKEEPER_WEBHOOK_SECRET is: whsec_ and what follows it")
    return key


def main(port: int) -> None:
    Hook.key = key_of(os.environ.get("WEBHOOK_SECRET", ""))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Hook)
    except OSError as error:
        sys.exit(f"cannot listen on port {port}: {error.strerror}; name another: python receiver.py 9001")
    with server, suppress(KeyboardInterrupt):
        print(f"listening on http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9000)
