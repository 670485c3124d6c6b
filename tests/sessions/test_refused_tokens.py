"""A session belongs to the API token that opened it: when that is revoked, nothing reaches the browser any more."""

import asyncio
from pathlib import Path

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.tokens import token_id_of
from leasekeeper.service import auth, token_watch
from tests.serving import ServerThread
from tests.sessions.stage import stage
from tests.sessions.test_sessions import refused


async def read_all(socket: ClientConnection) -> None:
    while True:
        await socket.recv()


async def test_revoking_the_token_that_opened_a_session_cuts_its_clients_and_its_viewers(
    server: ServerThread, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_watch, "RECHECK_SECONDS", 0.1)
    monkeypatch.setattr(auth, "KNOWN_SECONDS", 0.0)
    async with stage(server, sqlite_url, tmp_path) as at:
        text = await asyncio.to_thread(at.served.new_token, "work", "read", "operate")
        async with httpx2.AsyncClient(
            base_url=at.served.url, headers={"Authorization": f"Bearer {text}"}, timeout=60
        ) as program:
            answer = await program.post("/v1/sessions", json={"profile_id": "p1"})
            assert answer.status_code == 201, answer.text
            session = answer.json()
        view = session["live_view_url"].replace("http", "ws", 1) + "/socket"
        async with (
            connect(session["cdp_url"]) as client,
            connect(view, additional_headers={"Cookie": f"leasekeeper_token={text}"}) as person,
        ):
            await client.send('{"id": 1, "method": "Browser.getVersion"}')
            assert '"id":1' in await client.recv(decode=True)
            decision = Decision(
                target=Target.TOKEN, id=token_id_of(text) or "", action=Action.REVOKE, note="leaked", actor="ann"
            )
            await at.home.store.decide(decision)
            for socket in (client, person):
                with pytest.raises(ConnectionClosed) as closed:
                    await read_all(socket)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == token_watch.REFUSED
        status, said = await refused(session["cdp_url"])
        assert (status, said["code"]) == (401, "TOKEN_REVOKED")
        late = await at.post(session, "checkpoint", step="late")
        assert (late.status_code, late.json()["code"]) == (401, "TOKEN_REVOKED")
