"""Authentication against a real store: who it is, or a coded refusal; last use noted in the background and rarely."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.tokens import OPERATIONS, ApiToken, Scope, token_text
from leasekeeper.errors import AccessDenied, Forbidden, NotAuthenticated
from leasekeeper.ports import Store
from leasekeeper.service import auth
from leasekeeper.service.auth import Authenticator, bearer, create_token
from leasekeeper.stores import open_store


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2031, 5, 6, tzinfo=UTC)

    def __call__(self, _real: datetime) -> datetime:
        return self.now


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[Store, Clock]]:
    clock = Clock()
    store = await open_store(url, clock=clock)
    try:
        yield store, clock
    finally:
        await store.close()


async def refused(guard: Authenticator, text: str, operation: str = "check", **about: Any) -> str:
    with pytest.raises(AccessDenied) as raised:
        await guard.authorize(text, OPERATIONS[operation], **about)
    assert text == "" or text not in raised.value.message
    return raised.value.code


async def revoke(store: Store, token: ApiToken) -> None:
    await store.decide(
        Decision(target=Target.TOKEN, id=token.token_id, action=Action.REVOKE, note="leaked", actor="ann")
    )


async def test_a_token_says_who_it_is(sqlite_url: str) -> None:
    async with opened(sqlite_url) as (store, _):
        made = await create_token(store, "ci", [Scope.READ, Scope.SUBMIT], actor="ann")
        guard = Authenticator(store)
        assert await guard.authorize(made.text, OPERATIONS["stats"]) == made.token
        assert made.text not in repr(made)
        await guard.close()


async def test_every_way_to_be_refused_has_its_code(sqlite_url: str) -> None:
    async with opened(sqlite_url) as (store, clock):
        made = await create_token(store, "ci", [Scope.SUBMIT], actor="ann", accounts=["a"], pools=["p"])
        brief = await create_token(store, "brief", [Scope.READ], actor="ann", expires_after=timedelta(hours=1))
        gone = await create_token(store, "gone", [Scope.READ], actor="ann")
        await revoke(store, gone.token)
        clock.now += timedelta(hours=1)
        guard = Authenticator(store)
        assert await refused(guard, "") == "UNAUTHENTICATED"
        assert await refused(guard, made.text[:-1]) == "UNAUTHENTICATED"
        assert await refused(guard, token_text(made.token.token_id, bytes(32))) == "UNAUTHENTICATED"
        assert await refused(guard, token_text("nobodynobody", bytes(32))) == "UNAUTHENTICATED"
        assert await refused(guard, brief.text) == "TOKEN_EXPIRED"
        assert await refused(guard, gone.text) == "TOKEN_REVOKED"
        assert await refused(guard, made.text, "find") == "SCOPE_MISSING"
        assert await refused(guard, made.text, "submit", account="b", pool="p") == "ACCOUNT_NOT_ALLOWED"
        assert await refused(guard, made.text, "submit", account="a", pool="q") == "POOL_NOT_ALLOWED"
        assert (await guard.authorize(made.text, OPERATIONS["submit"], account="a", pool="p")).name == "ci"
        await guard.close()


async def test_refusals_are_of_two_kinds(sqlite_url: str) -> None:
    async with opened(sqlite_url) as (store, _):
        made = await create_token(store, "ci", [Scope.SUBMIT], actor="ann")
        guard = Authenticator(store)
        with pytest.raises(NotAuthenticated):
            await guard.identify("lk_nonsense")
        with pytest.raises(Forbidden):
            await guard.authorize(made.text, OPERATIONS["apply"])
        await guard.close()


async def test_a_known_token_is_read_again_after_a_moment(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(sqlite_url) as (store, _):
        made = await create_token(store, "ci", [Scope.READ], actor="ann")
        guard = Authenticator(store)
        monkeypatch.setattr(auth, "KNOWN_SECONDS", 3600.0)
        await guard.identify(made.text)
        await revoke(store, made.token)
        assert await guard.identify(made.text) == made.token
        monkeypatch.setattr(auth, "KNOWN_SECONDS", 0.0)
        assert await refused(guard, made.text) == "TOKEN_REVOKED"
        await guard.close()


async def test_a_use_is_noted_at_most_once_a_minute(sqlite_url: str) -> None:
    async with opened(sqlite_url) as (store, clock):
        made = await create_token(store, "ci", [Scope.READ], actor="ann")
        first = clock.now
        uses = []
        for passed in (0, 59, 1):
            clock.now += timedelta(seconds=passed)
            guard = Authenticator(store)  # another process, which remembers nothing
            await guard.identify(made.text)
            await guard.identify(made.text)
            await guard.close()
            uses.append((await store.get(ApiToken, made.token.token_id)).used_at)
        assert uses == [first, first, first + timedelta(minutes=1)]


async def test_a_refused_token_leaves_no_use(sqlite_url: str) -> None:
    async with opened(sqlite_url) as (store, _):
        made = await create_token(store, "ci", [Scope.READ], actor="ann")
        guard = Authenticator(store)
        await refused(guard, token_text(made.token.token_id, bytes(32)))
        await guard.close()
        assert (await store.get(ApiToken, made.token.token_id)).used_at is None


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer  ", "Basic abc", "lk_abc"])
def test_a_header_without_a_bearer_token_is_refused(header: str | None) -> None:
    with pytest.raises(NotAuthenticated):
        bearer(header)


@pytest.mark.parametrize("header", ["Bearer lk_abc", "bearer   lk_abc ", " BEARER lk_abc"])
def test_a_bearer_token_is_found(header: str) -> None:
    assert bearer(header) == "lk_abc"
