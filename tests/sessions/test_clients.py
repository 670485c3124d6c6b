"""The published clients on a session's address, as they are: Playwright and Puppeteer for Node, Playwright MCP,
browser-use. Several at once, clients that send nonsense, one that does not read. Versions: `node/package.json`."""

import asyncio
import json
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from leasekeeper.browsers.keeper.client import MAX_COMMAND_BYTES, MAX_DEPTH
from tests.environments import python_of
from tests.runtime.shop import Shop
from tests.runtime.stage import PATIENCE, until
from tests.serving import ServerThread
from tests.sessions.clients import HERE, NODE_CLIENTS, Driver, PlaywrightMcp
from tests.sessions.stage import stage
from tests.sessions.test_faults import keeper_of


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


def fuzzed(rng: random.Random) -> str | bytes:
    """A command that something happened to on its way, or one that nobody would write."""
    command = {"id": rng.randrange(100), "method": "Browser.getVersion", "params": {"a": ["ä", {"b": None}]}}
    text = json.dumps(command, ensure_ascii=False).encode()
    match rng.randrange(6):
        case 0:
            return text[: rng.randrange(len(text))]
        case 1:
            place = rng.randrange(len(text))
            return text[:place] + rng.randbytes(rng.randrange(1, 5)) + text[place + rng.randrange(3) :]
        case 2:
            return rng.randbytes(rng.randrange(1, 300))
        case 3:
            deep = rng.randrange(1, 3 * MAX_DEPTH)
            return '{"id": 1, "method": "Browser.getVersion", "params": ' + '{"a":' * deep + "1" + "}" * deep + "}"
        case 4:
            session, method = rng.choice(("", "x", 7, None, "A" * 32)), rng.choice(("", "A", "Target.x", "B.c\u0000d"))
            number = rng.choice((-1, 0, 1.5, 2**53, 2**64, "1", None, [1], True))
            return json.dumps(
                {"id": number, "method": method, "sessionId": session, "params": rng.choice(([], "x", {}))}
            )
        case _:
            return json.dumps({**command, "method": "Page.navigate", "junk": "x" * rng.randrange(2**18)})


async def fuzz(server: ServerThread, url: str, folder: Path, seed: int, count: int) -> None:
    """An error or a cut for the client that sends it, nothing else."""
    rng = random.Random(seed)
    async with stage(server, url, folder) as at:
        opened = await at.open()
        async with connect(opened["cdp_url"]) as neighbour:
            left = count
            while left:
                async with connect(opened["cdp_url"], max_size=None) as client:
                    with suppress(ConnectionClosed):
                        while left:
                            left -= 1
                            await client.send(fuzzed(rng))
                        await client.send('{"id": 5, "method": "Browser.getVersion"}')
                        while json.loads(await asyncio.wait_for(client.recv(), PATIENCE)).get("id") != 5:
                            pass
                if client.close_code not in (None, 1000):
                    assert (client.close_code, bool(client.close_reason)) == (4410, True)
                assert await send_many(neighbour, 0, 2) == [0, 1]
            async with connect(opened["cdp_url"], max_size=None) as client:
                with suppress(ConnectionClosed):
                    await client.send('{"id": 1, "method": "A.b", "params": {"a": "' + "x" * MAX_COMMAND_BYTES + '"}}')
                await asyncio.wait_for(client.wait_closed(), PATIENCE)
            assert await send_many(neighbour, 0, 2) == [0, 1]
        assert (await at.release(opened))["profile_state"] == "available"


async def test_frames_of_any_kind_hurt_nobody_but_who_sent_them(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    await fuzz(server, sqlite_url, tmp_path, seed=15, count=80)


@pytest.mark.release  # the daily test sends fewer frames
@pytest.mark.parametrize("seed", range(5))
async def test_many_frames_of_any_kind_hurt_nobody_but_who_sent_them(
    server: ServerThread, sqlite_url: str, tmp_path: Path, seed: int
) -> None:
    await fuzz(server, sqlite_url, tmp_path, seed=seed, count=3_000)


async def ask(client: ClientConnection, number: int, method: str, session: str = "", **params: Any) -> dict[str, Any]:
    """One command and its answer's result."""
    await client.send(json.dumps({"id": number, "method": method, "params": params, **named(session)}))
    while (message := json.loads(await asyncio.wait_for(client.recv(), PATIENCE))).get("id") != number:
        pass
    result: dict[str, Any] = message["result"]
    return result


def named(session: str) -> dict[str, str]:
    return {"sessionId": session} if session else {}


async def test_a_client_that_does_not_read_slows_nobody(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    """And the keeper is small while its clients read."""
    async with stage(server, sqlite_url, tmp_path) as at:
        opened = await at.open()
        keeper = keeper_of(at.home)
        async with connect(opened["cdp_url"]) as neighbour:
            assert await send_many(neighbour, 0, 50) == list(range(50))
            assert resident_mb(keeper) < 20, "with a client"
            # Nothing is read from its connection while one message waits for `recv`.
            async with connect(opened["cdp_url"], max_queue=1, max_size=None) as deaf:
                pages = (await ask(deaf, 1, "Target.getTargets"))["targetInfos"]
                page = next(each["targetId"] for each in pages if each["type"] == "page")
                session = (await ask(deaf, 2, "Target.attachToTarget", targetId=page, flatten=True))["sessionId"]
                million = {"expression": "'x'.repeat(1e6)", "returnByValue": True}
                asked = {"id": 3, "method": "Runtime.evaluate", "params": million, "sessionId": session}
                for _ in range(60):
                    await deaf.send(json.dumps(asked))
                assert await send_many(neighbour, 0, 300) == list(range(300))
                deaf.transport.abort()
            assert await send_many(neighbour, 0, 50) == list(range(50))
        await at.release(opened)


def resident_mb(pid: int) -> float:
    line = next(each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


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


@pytest.mark.release  # its environment takes a minute to make
async def test_browser_use_drives_a_session_as_it_is(server: ServerThread, sqlite_url: str, tmp_path: Path) -> None:
    python = await asyncio.to_thread(python_of, "browser-use")
    with Shop() as shop:
        async with stage(server, sqlite_url, tmp_path) as at:
            opened = await at.open()
            quiet = {"ANONYMIZED_TELEMETRY": "false", "BROWSER_USE_LOGGING_LEVEL": "result", "HOME": str(tmp_path)}
            process = await asyncio.create_subprocess_exec(
                *(str(python), str(HERE / "browser_use_drive.py"), shop.url, "agent", "3"),
                env={**os.environ, **quiet, "LEASEKEEPER_CDP_URL": opened["cdp_url"]},
                stdout=asyncio.subprocess.PIPE,
            )
            said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
            assert said.decode().splitlines()[-1:] == ["clicked 3"]

            async def heard() -> bool:
                return len(shop.of("agent", "/act")) == 3

            await until(heard)
            assert (await at.release(opened))["profile_state"] == "available"
