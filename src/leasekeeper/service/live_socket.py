"""The WebSocket of the live view: sends pictures and state of a run's browser to a person, and receives their input.

Watching needs the right to read the run, acting in a session the scope `operate`. It authenticates by the cookie of the
pages, for as long as its token is valid; the guards have refused pages of other sites before.
"""

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from leasekeeper.core.leases import RunRecord
from leasekeeper.core.tokens import ApiToken
from leasekeeper.driver_port import ClientRefused, DevToolsClient
from leasekeeper.errors import LeasekeeperError
from leasekeeper.runtime.session_endpoint import ENDED, close_reason
from leasekeeper.runtime.session_host import ended
from leasekeeper.runtime.viewer import Screen, Viewer
from leasekeeper.service.control import find_browser
from leasekeeper.service.pages.signing_in import COOKIE
from leasekeeper.service.problems import bug_response, problem_response
from leasekeeper.service.run_targets import not_open
from leasekeeper.service.token_watch import serve_while_valid

if TYPE_CHECKING:
    from leasekeeper.service.state import Service

SOCKET: Final = "/ui/runs/{run_id}/live/socket"


@dataclass(frozen=True, slots=True)
class Watched:
    """A run whose browser can be shown. `acts`: whether this person may act in it."""

    run: RunRecord
    view: AbstractAsyncContextManager[DevToolsClient]
    acts: bool
    holder: str


def live_socket_routes(service: "Service") -> list[BaseRoute]:
    """The WebSocket beside the pages."""
    return [WebSocketRoute(SOCKET, partial(serve_live_view, service))]


async def watched_run(service: "Service", run_id: str, token: ApiToken) -> Watched:
    """The run to show. Raises AccessDenied, NotFound, or SessionEnded with the reason."""
    await service.permissions.check(token, "get", {"kind": RunRecord, "record_id": run_id})
    run = await service.store.get(RunRecord, run_id)
    browser = find_browser(service, run_id)
    if browser is None:
        session = service.sessions.get(run_id)
        if session is not None:
            session.check()
        raise not_open(run)
    acts, session = browser.may_act(token), browser.session
    if browser.live is not None:
        view = browser.live.viewer()
    elif session is not None:
        view = session.run.viewer(acts=acts)
    else:
        raise not_open(run)
    return Watched(run, view, acts, browser.view().holder)


async def serve_live_view(service: "Service", socket: WebSocket) -> None:
    """Let the person in, or refuse the upgrade with a problem; then show the browser until one side leaves."""
    try:
        identify = partial(service.auth.identify, socket.cookies.get(COOKIE, ""))
        watched = await watched_run(service, socket.path_params["run_id"], await identify())
        try:
            async with watched.view as client:
                await socket.accept()
                await serve_while_valid(identify, _show(watched, client, socket), socket)
        except ClientRefused as refused:
            raise ended(watched.run.run_id, str(refused)) from None
    except LeasekeeperError as error:
        await socket.send_denial_response(problem_response(error))
    except Exception as error:
        if socket.application_state.name != "CONNECTING":
            raise
        await socket.send_denial_response(bug_response(error))


async def _show(watched: Watched, client: DevToolsClient, socket: WebSocket) -> None:
    screen = Screen()
    viewer = Viewer(client, screen, acts=watched.acts)
    screen.say("control", {"by": watched.holder, "acts": watched.acts})
    showing = asyncio.ensure_future(viewer.run())
    sending = asyncio.ensure_future(_send(screen, socket))
    receiving = asyncio.ensure_future(_receive(viewer, socket))
    tasks = {showing, sending, receiving}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if not receiving.done() or receiving.cancelled():
        await socket.close(ENDED, close_reason(client.why or "the browser was closed"))


async def _send(screen: Screen, socket: WebSocket) -> None:
    """Send one message after the other: on a slow connection newer pictures replace older ones."""
    while True:
        for message in await screen.take():
            if isinstance(message, str):
                await socket.send_text(message)
            else:
                await socket.send_bytes(message)


async def _receive(viewer: Viewer, socket: WebSocket) -> None:
    """Handle input in order. Messages that are no JSON object are ignored."""
    while (message := await socket.receive())["type"] == "websocket.receive":
        try:
            found: Any = json.loads(message.get("text") or "null")
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            await viewer.receive(found)
