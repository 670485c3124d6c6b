"""Login canaries in real browsers: by an address and a selector, of accounts and of tasks, in every kind of run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from leasekeeper.app import App, Run, SyncRun
from leasekeeper.client import Client
from leasekeeper.core.accounts import Account
from leasekeeper.core.canaries import Canary
from leasekeeper.core.leases import RunRecord
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.encryption import new_key
from leasekeeper.runtime import canary
from tests.browsers.sites import browser, options, serving
from tests.conformance.world import fleet, profile
from tests.runtime.browsing import house
from tests.runtime.shop import Shop
from tests.runtime.test_manual_run import Guest

# By what the site answers: its status, and whether the way out is shown.
ANSWERS = {
    "/account": ("200 OK", True, True),
    "/logged-out": ("200 OK", False, False),
    "/login-needed": ("401 Unauthorized", False, False),
    "/blocked": ("403 Forbidden", False, None),
    "/too-many": ("429 Too Many Requests", False, None),
    "/broken": ("503 Service Unavailable", True, None),
}


async def site(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    path = (await reader.readuntil(b"\r\n\r\n")).decode().split()[1]
    status, shown, _ = ANSWERS.get(path, ("200 OK", False, None))
    body = "<a id=out>log out</a>" if shown else "<form>log in</form>"
    writer.write(f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    await writer.drain()


@pytest.mark.parametrize("sync", [False, True])
async def test_a_site_that_refuses_to_answer_has_not_said_that_one_is_logged_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    """Both forms ask the same questions; a site that hangs up says nothing either."""
    async with serving(site) as port:
        asked = {path: Canary(url=f"http://127.0.0.1:{port}{path}", selector="#out") for path in ANSWERS}

        def by_sync() -> dict[str, bool | None]:
            with sync_playwright() as playwright:
                context = playwright.chromium.launch_persistent_context(**options(tmp_path / "p"))
                try:
                    return {path: ask(path, lambda one: canary.ask_sync(context, one)) for path in ANSWERS}
                finally:
                    context.close()

        def ask(path: str, how: Any) -> Any:
            # Not seen costs the whole time: less of it where nothing is to be seen.
            monkeypatch.setattr(canary, "SEEN_SECONDS", 4.0 if ANSWERS[path][1] else 0.2)
            return how(asked[path])

        if sync:
            found = await asyncio.to_thread(by_sync)
        else:
            async with browser(tmp_path / "p") as context:
                found = {path: await ask(path, lambda one: canary.ask_async(context, one)) for path in ANSWERS}
        assert found == {path: answer for path, (_, _, answer) in ANSWERS.items()}


def app_of(shop: Shop) -> App:
    app = App(renew_every=0.3)

    @app.task("visit", warm=False)
    async def visit(run: Run) -> None:
        await run.page.goto(run.payload["url"])

    @app.task("list_orders", warm=False, canary=Canary(url=f"{shop.url}/security", selector="#prompt"))
    def list_orders(run: SyncRun) -> None:
        run.page.goto(run.payload["url"])

    return app


async def test_the_account_is_asked_after_by_jobs_sessions_and_people_and_a_task_by_its_own(
    sqlite_url: str, tmp_path: Path
) -> None:
    with Shop() as shop:
        shared, key = f"file://{tmp_path}/shared", new_key()
        async with house(app_of(shop), sqlite_url, tmp_path, profile_store=shared, secret_key=key) as home:
            one = profile("p1")
            account = Account(account_id=one.account_id, canary_url=f"{shop.url}/", canary_selector="#go")
            await home.store.apply(fleet(account, one), actor="test")

            def address(who: str) -> str:
                return f"{shop.url}/{who}?by={who}"

            await home.do(await home.submit("visit", payload={"url": address("job")}))
            await home.do(await home.submit("list_orders", payload={"url": address("own")}))
            client = Client(await home.open_store(), home.config)
            async with client.browser("p1") as opened:
                await opened.page.goto(address("session"))
            await client.close()
            guest = Guest(home, address("person"))
            await guest.opened
            await guest.leave()
            found = sorted((await home.store.find(Snapshot, {"profile_id": "p1"})).items, key=lambda each: each.token)
            assert [each.verdict for each in found] == ["logged_in"] * 4
            asked = [hit.path for hit in shop.hits if not hit.by]
            assert [path for path in asked if path in ("/", "/security")] == ["/", "/security", "/", "/"]
            # What the canary opened is not where the run was.
            ended = (await home.store.find(RunRecord, {"profile_id": "p1"})).items
            assert [str(run.final_url).partition("?")[0] for run in reversed(ended)] == [
                f"{shop.url}/{who}" for who in ("job", "own", "session", "person")
            ]
