"""A receiver of webhooks for `leasekeeper webhooks listen`: checks the signature, prints, may run a command."""

import json
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

import click

from leasekeeper.webhooks.message import Keys, verify

MAX_BODY: Final = 1_000_000
READ_SECONDS: Final = 10.0
EXEC_SECONDS: Final = 10.0


class _Server(HTTPServer):
    """Serves one request at a time, so that messages are printed one after the other."""

    keys: Keys
    program: str | None
    as_json: bool
    accepted: int = 0


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = READ_SECONDS

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self._answer(413)
            return
        body = self.rfile.read(int(length))
        headers = {name.lower(): value for name, value in self.headers.items()}
        fault = verify(self.server.keys, headers, body, datetime.now(UTC))
        if fault is not None:
            click.echo(f"leasekeeper: refused a message: {fault}", err=True)
            self._answer(401)
            return
        self._answer(self._accept(headers["webhook-id"], body))

    def _accept(self, message_id: str, body: bytes) -> int:
        """Print a message, run the command. Returns the HTTP status to answer with."""
        message = json.loads(body)
        self.server.accepted += 1
        if self.server.as_json:
            click.echo(json.dumps({"id": message_id, **message}))
        else:
            click.echo(f"{message['timestamp']} {message['type']} {json.dumps(message['data'])}")
        sys.stdout.flush()
        return 200 if self.server.program is None or _run(self.server.program, body) else 500

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_arguments: Any) -> None:
        """Requests are printed as messages, not as lines of a web server."""


def _run(program: str, body: bytes) -> bool:
    """Run the command with the message on stdin. False: it failed, and the message should come again."""
    try:
        done = subprocess.run(shlex.split(program), input=body, timeout=EXEC_SECONDS, check=False)  # noqa: S603 - the person's own command
    except (OSError, subprocess.TimeoutExpired) as error:
        click.echo(f"leasekeeper: {program}: {error}", err=True)
        return False
    if done.returncode:
        click.echo(f"leasekeeper: {program} exited with {done.returncode}: the message will be sent again", err=True)
    return done.returncode == 0


def serve(host: str, port: int, keys: Keys, *, program: str | None, count: int | None, as_json: bool) -> None:
    """Receive until interrupted, or until `count` messages were accepted."""
    with _Server((host, port), _Handler) as server:
        server.keys, server.program, server.as_json = keys, program, as_json
        click.echo(f"listening on http://{host}:{server.server_port}/", err=True)
        while count is None or server.accepted < count:
            server.handle_request()
