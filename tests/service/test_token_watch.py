"""What a token has opened ends soon after it was revoked or has expired: streams, and the sockets of workers.

Sockets at a browser are in `tests/sessions/test_refused_tokens.py`.
"""

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime, timedelta

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.tokens import token_id_of
from leasekeeper.errors import LeasekeeperError, StoreUnavailable, TokenRevoked
from leasekeeper.runtime.session_link import VERSION
from leasekeeper.runtime.session_offer import PATH
from leasekeeper.service import auth, token_watch
from leasekeeper.service.token_watch import while_valid
from tests.serving import Served, ServerThread

TIMEOUT = httpx2.Timeout(60)


class Clock:
    ahead = timedelta(0)

    def __call__(self, real: datetime) -> datetime:
        return real + self.ahead


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shop(server: ServerThread, sqlite_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(token_watch, "RECHECK_SECONDS", 0.05)
    monkeypatch.setattr(auth, "KNOWN_SECONDS", 0.0)
    found = server.serve(sqlite_url, clock=clock)
    yield found
    found.close()


def end(shop: Served, text: str, clock: Clock, why: str) -> None:
    if why == "TOKEN_EXPIRED":
        clock.ahead = timedelta(hours=2)
        return
    decision = Decision(
        target=Target.TOKEN, id=token_id_of(text) or "", action=Action.REVOKE, note="leaked", actor="ann"
    )
    shop.run(shop.store.decide(decision))


async def streams(shop: Served) -> int:
    return len(shop.service.signals._feed._open)


@pytest.mark.parametrize("why", ["TOKEN_REVOKED", "TOKEN_EXPIRED"])
@pytest.mark.parametrize("path", ["/v1/events/stream", "/ui/live"])
def test_a_stream_ends_and_says_why(shop: Served, clock: Clock, path: str, why: str) -> None:
    text = shop.new_token("read", expires_after=timedelta(hours=1))
    headers = {"Cookie": f"leasekeeper_token={text}"} if path == "/ui/live" else {"Authorization": f"Bearer {text}"}
    with httpx2.stream("GET", shop.url + path, headers=headers, timeout=TIMEOUT) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        assert next(lines).startswith("retry")
        end(shop, text, clock, why)
        said = [line for line in lines if line]
    assert said[-2] == "event: refused"
    assert json.loads(said[-1].removeprefix("data: "))["code"] == why
    assert shop.run(streams(shop)) == 0


@pytest.mark.parametrize("why", ["TOKEN_REVOKED", "TOKEN_EXPIRED"])
def test_a_worker_that_offers_sessions_is_sent_away(shop: Served, clock: Clock, why: str) -> None:
    text = shop.new_token("work", expires_after=timedelta(hours=1))
    offer = {"version": VERSION, "worker_id": "w1", "pool": "default", "machine": None, "limit": 1}
    address = shop.url.replace("http", "ws", 1) + PATH
    with connect(address, additional_headers={"Authorization": f"Bearer {text}"}) as socket:
        socket.send(json.dumps(offer))
        end(shop, text, clock, why)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == token_watch.REFUSED
    assert str(token_id_of(text)) in closed.value.rcvd.reason
    assert shop.service.sessions.places == []


async def test_a_store_that_is_away_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_watch, "RECHECK_SECONDS", 0.0)
    answers: list[LeasekeeperError | None] = [None, StoreUnavailable("away"), None, TokenRevoked("revoked")]

    async def check() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    with pytest.raises(TokenRevoked):
        await while_valid(check, asyncio.Event().wait())
    assert answers == []
