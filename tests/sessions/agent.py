"""An agent, as the MCP library's own client is one: calls tools and prints each result as a line of JSON.

Run by the tests in the environment of the extra `mcp`: `agent.py ADDRESS TOKEN` speaks to a server's /mcp,
`agent.py stdio` starts `leasekeeper mcp`. Reads calls from standard input, one line each: `["tool", {arguments}]`.
"""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


async def server(stack: AsyncExitStack) -> Any:
    if sys.argv[1] == "stdio":
        return StdioServerParameters(command=sys.executable, args=["-m", "leasekeeper", "mcp"], env=dict(os.environ))
    headers = {"Authorization": f"Bearer {sys.argv[2]}"}
    http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=200))
    return streamable_http_client(f"{sys.argv[1]}/mcp", http_client=http)


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201 - its parent reads it


async def main() -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(await server(stack)))
        say([tool.name for tool in (await client.list_tools()).tools])
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            name, arguments = json.loads(line)
            result = await client.call_tool(name, arguments)
            say({"error": result.is_error, "text": result.content[0].text, "answer": result.structured_content})


asyncio.run(main())
