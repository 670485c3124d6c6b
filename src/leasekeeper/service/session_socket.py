"""The WebSocket of a session: one more DevTools client at the browser's keeper, for programs with the session's token.

After the session's end the upgrade is answered with 410 and the reason, so that a client that reconnects can report it.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.driver_port import ClientRefused, DevToolsClient
from leasekeeper.errors import Conflict, LeasekeeperError
from leasekeeper.runtime.remote_session import RemoteRun
from leasekeeper.runtime.session_endpoint import ENDED, close_reason
from leasekeeper.runtime.session_host import HostedSession
from leasekeeper.service.problems import bug_response, problem_response
from leasekeeper.service.session_views import admitted, token_in
from leasekeeper.service.token_watch import serve_while_valid

if TYPE_CHECKING:
    from leasekeeper.service.state import Service

PATH: Final = "/v1/sessions/{id}/cdp"
COME_BACK: Final = 1012  # the worker's connection was lost: the session may go on


def socket_routes(service: "Service") -> list[BaseRoute]:
    """The WebSockets of the API."""
    return [WebSocketRoute(PATH, partial(serve_devtools, service))]


async def serve_devtools(service: "Service", socket: WebSocket) -> None:
    """Let the client in, or refuse the upgrade with a problem; then relay until one side leaves."""
    try:
        session = await admitted(service, socket.path_params["id"], token_in(socket.headers, socket.query_params))
        await _serve(service, session, socket)
    except LeasekeeperError as error:
        await socket.send_denial_response(problem_response(error))
    except Exception as error:
        if socket.application_state.name != "CONNECTING":
            raise
        await socket.send_denial_response(bug_response(error))


async def _serve(service: "Service", session: HostedSession, socket: WebSocket) -> None:
    try:
        async with session.run.client() as client:
            await socket.accept()
            # The session's token is valid only as long as the API token that opened it.
            opened_by = partial(service.auth.check_active, session.owner)
            await serve_while_valid(opened_by, _relay(session, client, socket), socket)
    except ClientRefused as refused:
        session.check()
        raise Conflict(
            f"session {session.session_id} takes no further client: {refused}", cause=ConflictReason.CLIENT_REFUSED
        ) from None


async def _relay(session: HostedSession, client: DevToolsClient, socket: WebSocket) -> None:
    """Relay both directions without buffering: a client that sends too fast, or does not read, fills its own socket."""
    sending = asyncio.ensure_future(_send_all(session, client, socket))
    try:
        while (message := await socket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            await client.send(text.encode() if text is not None else message.get("bytes") or b"")
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _send_all(session: HostedSession, client: DevToolsClient, socket: WebSocket) -> None:
    while (message := await client.receive()) is not None:
        await socket.send_text(message.decode())
    why = client.why or (session.run.why_over if session.over else "the browser's keeper ended the connection")
    run = session.run
    gone_for_now = isinstance(run, RemoteRun) and run.away and not session.over
    await socket.close(COME_BACK if gone_for_now else ENDED, close_reason(why))
