"""The published clients on a session's address, as they are: Playwright and Puppeteer for Node, Playwright MCP.
Several at once, clients that send nonsense, and one that does not read. Versions: `node/package.json`."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from leasekeeper.browsers.keeper.client import MAX_DEPTH
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE, until
from tests.serving import ServerThread
from tests.sessions.clients import NODE_CLIENTS, Driver, PlaywrightMcp
from tests.sessions.stage import stage


async def test_published_clients_drive_a_session_as_they_are(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    with Shop() as shop:
        async with stage(server, sqlite_url, tmp_path) as at:
            opened = await at.open()
            for kind in NODE_CLIENTS:
                driver = await Driver.start(kind, opened["cdp_url"], shop.url, kind, times=5)
                assert await driver.rest() == ["clicked 5"]

                async def heard(name: str = kind) -> bool:
                    return len(shop.of(name, "/act")) == 5

                await until(heard)
            agent = await PlaywrightMcp.start(opened["cdp_url"], tmp_path)
            shown = await agent.tool("browser_navigate", url=f"{shop.url}/?title=agent")
            assert not shown.get("isError"), shown
            assert "Page Title: agent" in json.dumps(shown)
            await at.release(opened)
            lost = await agent.tool("browser_navigate", url=f"{shop.url}/?title=late")
            assert lost.get("isError"), lost
            assert "410" in json.dumps(lost)
            await agent.close()
            assert shop.of("late") == []
            assert not [hit for hit in shop.hits if hit.path == "/" and "late" in hit.by]


async def send_many(client: ClientConnection, who: int, count: int) -> list[int]:
    """Ask for sums, many at once; the numbers of the answers, each checked."""
    for number in range(count):
        await client.send(json.dumps({"id": number, "method": "Target.getTargetInfo", "params": {}}))
        if number % 50 == who % 50:
            await asyncio.sleep(0)
    answers: list[int] = []
    while len(answers) < count:
        message = json.loads(await asyncio.wait_for(client.recv(), PATIENCE))
        if "id" in message:
            assert message["result"]["targetInfo"]["type"] == "browser"
            answers.append(message["id"])
    return answers


async def crowd(server: ServerThread, url: str, folder: Path, commands: int) -> None:
    """Two clients and a viewer at once, and one that reads nothing: every answer reaches the one who asked."""
    async with stage(server, url, folder) as at:
        opened = await at.open()
        address = opened["cdp_url"]
        async with connect(address) as one, connect(address) as two, connect(address) as viewer:
            answers = await asyncio.gather(*(send_many(each, n, commands) for n, each in enumerate((one, two, viewer))))
        for found in answers:
            assert found == list(range(commands)), "each answer once, in the order of its question"
        await at.release(opened)


async def test_two_clients_and_a_viewer_get_every_answer(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    await crowd(server, sqlite_url, tmp_path, 300)


@pytest.mark.release  # the daily test sends fewer commands
async def test_two_clients_and_a_viewer_get_every_one_of_many_answers(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    await crowd(server, sqlite_url, tmp_path, 10_000)


NONSENSE: dict[str, str | bytes] = {
    "truncated": '{"id": 1, "method": "Browser.get',
    "binary": b"\x00\xff\x01\x00",
    "deep": '{"id": 1, "method": "A.b", "params": ' + '{"a":' * (MAX_DEPTH + 2) + "1" + "}" * (MAX_DEPTH + 2) + "}",
    "deeper": "[" * 100_000,
    "a list": "[]",
    "no id": '{"method": "Browser.getVersion"}',
    "id as text": '{"id": "1", "method": "Browser.getVersion"}',
    "huge id": '{"id": 99999999999999999999999, "method": "Browser.getVersion"}',
    "constant": '{"id": 1, "method": "A.b", "params": {"a": NaN}}',
    "empty": "",
}


async def test_what_is_no_command_cuts_that_client_alone(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    async with stage(server, sqlite_url, tmp_path) as at:
        opened = await at.open()
        async with connect(opened["cdp_url"]) as neighbour:
            for name, message in NONSENSE.items():
                async with connect(opened["cdp_url"]) as client:
                    with suppress(ConnectionClosed):  # it may be cut before the whole of it is sent
                        await client.send(message)
                    await asyncio.wait_for(client.wait_closed(), PATIENCE)
                    assert client.close_code == 4410, name
                    assert client.close_reason, name
            async with connect(opened["cdp_url"]) as client:
                await client.send('{"id": 1, "method": "Browser.getVersion", "sessionId": "of another"}')
                answer = json.loads(await asyncio.wait_for(client.recv(), PATIENCE))
                assert (answer["id"], "error" in answer) == (1, True)
            assert await send_many(neighbour, 0, 5) == [0, 1, 2, 3, 4]
        await at.release(opened)
