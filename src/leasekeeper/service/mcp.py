"""The MCP server: `agent_tools` over the protocol's own library, at `/mcp` (Streamable HTTP) and on stdio.

Every tool is a call of the HTTP API with the caller's token, so scopes, restrictions and refusals are those of the API.
It does not rely on the protocol's sessions: tools take our session ids. The library is an extra, imported when needed.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leasekeeper.errors import InputError, LeasekeeperError
from leasekeeper.server_trust import authorization
from leasekeeper.service.agent_tools import TOOLS, Api, use
from leasekeeper.service.auth import Authenticator, bearer
from leasekeeper.service.problems import problem, problem_response
from leasekeeper.version import __version__

if TYPE_CHECKING:
    import httpx2

PATH: Final = "/mcp"
# The maximum time to wait for a profile and open a session.
CALL_SECONDS: Final = 700.0
MISSING: Final = "the MCP server needs the package mcp: pip install 'leasekeeper[mcp,server,http]'"
INSTRUCTIONS: Final = (
    "Leasekeeper leases logged-in browser profiles. Open a session, drive its browser through cdp_url with a browser "
    "tool, bracket what cannot be undone with begin_mutation and end_mutation, release at the end. When a tool says "
    "that a session is over, stop using its browser and open another."
)


class HttpApi:
    """The API through an HTTP client that sends the caller's token."""

    def __init__(self, client: "httpx2.AsyncClient") -> None:
        self._client = client

    async def call(
        self, method: str, path: str, query: Mapping[str, Any], body: Mapping[str, Any] | None
    ) -> tuple[int, Any]:
        answer = await self._client.request(method, path, params=query, json=body)
        return answer.status_code, answer.json() if answer.content else {}


class CallerApi:
    """The API of this very process, as the caller of an HTTP request: its token, and the address it used."""

    def __init__(self, app: ASGIApp, request: Request) -> None:
        self._app = app
        self._request = request

    async def call(
        self, method: str, path: str, query: Mapping[str, Any], body: Mapping[str, Any] | None
    ) -> tuple[int, Any]:
        import httpx2

        root = self._request.scope.get("root_path", "")
        transport = httpx2.ASGITransport(app=_below(self._app, root, self._request.receive))
        base = f"{self._request.url.scheme}://{self._request.headers['host']}"
        text = self._request.headers.get("authorization")
        headers = {} if text is None else {"authorization": text}
        async with httpx2.AsyncClient(
            transport=transport, base_url=base, headers=headers, timeout=CALL_SECONDS
        ) as client:
            return await HttpApi(client).call(method, root + path, query, body)


def _below(app: ASGIApp, root: str, hear: Receive) -> ASGIApp:
    """The application under this path. After the body it gets the messages of the caller's own connection, so that a
    call ends when the agent disconnects.
    """

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        read = False

        async def heard() -> Message:
            nonlocal read
            message = await (hear if read else receive)()
            read = read or not message.get("more_body", False)
            return message

        await app({**scope, "root_path": root}, heard, send)

    return inner


def make_server(api_of: Callable[[Any], Api]) -> Any:
    """The protocol's server with our tools. `api_of` finds the API for a call, by its context."""
    try:
        import mcp_types as types
        from mcp.server import Server
    except ImportError:
        raise InputError(MISSING) from None

    async def list_tools(_context: Any, _params: Any) -> Any:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.doc,
                    input_schema=tool.schema,
                    annotations=types.ToolAnnotations(read_only_hint=tool.reads),
                )
                for tool in TOOLS
            ]
        )

    async def call_tool(context: Any, params: Any) -> Any:
        try:
            well, answer = await use(api_of(context), params.name, params.arguments or {})
        except LeasekeeperError as error:
            well, answer = False, problem(error)
        text = json.dumps(answer) if well else f"{answer.get('code', 'ERROR')}: {answer.get('detail', '')}"
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], structured_content=answer, is_error=not well
        )

    return Server(
        "leasekeeper",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


class McpEndpoint:
    """`/mcp` as an ASGI application. The MCP server starts with the first call: most servers never need it."""

    def __init__(self, auth: Authenticator) -> None:
        self.app: ASGIApp | None = None
        self._auth = auth
        self._manager: Any = None
        self._over = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            await self._auth.identify(bearer(request.headers.get("authorization")))
            manager = await self._started()
        except LeasekeeperError as error:
            await problem_response(error)(scope, receive, send)
            return
        await manager.handle_request(scope, receive, send)

    async def close(self) -> None:
        """Stop the MCP server."""
        self._over.set()
        if self._running is not None:
            await asyncio.wait({self._running})

    async def _started(self) -> Any:
        async with self._starting:
            if self._manager is None:
                server = make_server(self._api_of)
                from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

                manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
                ready = asyncio.Event()
                # A task of its own: the library's context has to end in the task that began it.
                self._running = asyncio.create_task(self._run(manager, ready))
                await ready.wait()
                self._manager = manager
            return self._manager

    async def _run(self, manager: Any, ready: asyncio.Event) -> None:
        async with manager.run():
            ready.set()
            await self._over.wait()

    def _api_of(self, context: Any) -> Api:
        if self.app is None or not isinstance(context.request, Request):
            raise InputError("the call did not come over HTTP")
        return CallerApi(self.app, context.request)


async def serve_stdio(url: str, token: str, verify: Any = True) -> None:
    """Serve one agent on standard input and output, with the API of the server at this address."""
    import httpx2

    async with httpx2.AsyncClient(
        base_url=url, headers=authorization(token), timeout=CALL_SECONDS, verify=verify
    ) as client:
        server = make_server(lambda _context: HttpApi(client))
        from mcp.server.stdio import stdio_server

        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
