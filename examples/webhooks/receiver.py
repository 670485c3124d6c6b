"""A receiver of Leasehold's webhooks: `WEBHOOK_SECRET=whsec_… python receiver.py`, then POST to http://127.0.0.1:9000/.

It needs nothing but the standard library. A real one would keep the ids that it has seen where they outlive it.
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MOST_BYTES = 1_000_000
OLDEST_SECONDS = 300


def is_genuine(secret: str, message_id: str, timestamp: str, signatures: str, body: bytes) -> bool:
    """Whether the message was signed with the secret, and lately."""
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > OLDEST_SECONDS:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mark = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    expected = b"v1," + base64.b64encode(mark)
    return any(hmac.compare_digest(each.encode(), expected) for each in signatures.split())


class Hook(BaseHTTPRequestHandler):
    """Checks a message, prints it, and answers. Only an answer of the 200s counts as received."""

    secret = os.environ.get("WEBHOOK_SECRET", "")
    seen: set[str] = set()  # noqa: RUF012 - one memory for all requests

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        if not 0 <= length <= MOST_BYTES:
            self.send_error(413)
            return
        body = self.rfile.read(length)
        message_id, timestamp, signatures = (
            self.headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature")
        )
        if not is_genuine(self.secret, message_id, timestamp, signatures, body):
            self.send_error(401, "not signed with this secret, or too old")
            return
        if message_id not in self.seen:  # a message may come twice, always with the same id
            message = json.loads(body)
            print(message["type"], message["data"]["job_id"], flush=True)
            self.seen.add(message_id)
        self.send_response(204)
        self.end_headers()


if __name__ == "__main__":
    if not Hook.secret:
        sys.exit("set WEBHOOK_SECRET to what LEASEHOLD_WEBHOOK_SECRET is: whsec_…")
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    with ThreadingHTTPServer(("127.0.0.1", port), Hook) as server:
        print(f"listening on http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
