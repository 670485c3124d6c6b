"""A person takes the browser of a running job, and hands it back or releases it: with real browsers and a worker."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.app import App, HumanAnswer, Run, SyncRun
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.decisions import Action, Decision, Review, Target
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.driver_port import DevToolsClient
from leasekeeper.errors import Conflict
from leasekeeper.runtime.live_runs import LiveRun, live_run_of
from leasekeeper.runtime.lost_runs import Ledger
from leasekeeper.runtime.person import Person
from tests.runtime.browsing import House, house
from tests.runtime.shop import Shop
from tests.runtime.stage import until

ANN = Person(name="ann", note="looks odd")


def new_app() -> App:
    app = App(renew_every=0.3)

    async def ask(run: Run) -> dict[str, Any]:
        await run.page.goto(run.payload["url"] + "/?title=asks")
        before = run.lease
        answer = await run.request_human("solve the prompt", timeout=run.payload.get("timeout", 3600))
        await run.safe("solved")
        await run.attach("after.txt", "kept")
        return {
            "said": [answer.by, answer.note, answer.outcome],
            "tokens": [before.token, run.lease.token],
            "runs": [before.run_id, run.lease.run_id],
            "title": await run.page.title(),
        }

    app.task("ask", timeout=90)(ask)

    @app.task("ask_plainly")
    def ask_plainly(run: SyncRun) -> dict[str, Any]:
        run.page.goto(run.payload["url"] + "/?title=asks")
        answer = run.request_human("solve the prompt")
        run.safe("solved")
        return {"said": [answer.by, answer.note, answer.outcome], "title": run.page.title(), "token": run.lease.token}

    @app.task("press_on")
    async def press_on(run: Run) -> None:
        await run.page.goto(run.payload["url"] + "/?title=task")
        while True:
            await run.page.click("#go")

    @app.task("start_over", resumable=True)
    async def start_over(run: Run) -> dict[str, Any]:
        if run.page.url == "about:blank":
            await run.page.goto(run.payload["url"] + "/?title=task")
            while True:
                await run.page.click("#go")
        return {"title": await run.page.title(), "token": run.lease.token}

    return app


async def running(profile_id: str = "p1") -> LiveRun:
    async def look() -> LiveRun | None:
        return live_run_of(profile_id)

    found = await until(look)
    assert found is not None
    return found


async def asking(home: House, profile_id: str = "p1") -> LiveRun:
    async def look() -> list[Review]:
        return list((await home.store.find(Review, {"open": "1"})).items)

    (review,) = await until(look)
    assert (review.target, review.summary) == ("job", "solve the prompt")
    return await running(profile_id)


async def tell(client: DevToolsClient, method: str, session: str = "", **params: Any) -> Any:
    """One command of a person's, and its result."""
    message: dict[str, Any] = {"id": 7, "method": method, "params": params}
    await client.send(json.dumps({**message, "sessionId": session} if session else message).encode())
    while (answer := await client.receive()) is not None:
        found = json.loads(answer)
        if found.get("id") == 7:
            return found["result"]
    raise AssertionError(client.why)


async def act(live: LiveRun, expression: str) -> None:
    """What a person does in the live view, put shortly."""
    async with live.viewer() as client:
        targets = (await tell(client, "Target.getTargets"))["targetInfos"]
        (page,) = [each["targetId"] for each in targets if each["type"] == "page"]
        session = (await tell(client, "Target.attachToTarget", targetId=page, flatten=True))["sessionId"]
        await tell(client, "Runtime.evaluate", session, expression=expression)


@pytest.mark.parametrize("task", ["ask", "ask_plainly"])
async def test_a_task_that_asks_goes_on_under_its_new_token(sqlite_url: str, tmp_path: Path, task: str) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home, home.worker():
            job = await home.submit(task, payload={"url": shop.url})
            live = await asking(home)
            first = live.lease
            human = await live.take(ANN)
            assert (human.lease.worker_id, human.lease.token) == ("human:ann", first.token + 1)
            with pytest.raises(Conflict) as second:
                await live.take(Person(name="bob"))
            assert second.value.cause is ConflictReason.TAKEN_ALREADY
            assert (await home.store.get(RunRecord, first.run_id)).stop_reason == "TAKEN_OVER"
            await act(live, "document.title = 'solved'")
            await live.hand_back(HumanAnswer(by="ann", note="it was a picture", outcome="solved"))
            (done,) = await home.settled(job)
            assert done.state == "completed"
            assert done.attempt == 1
            run = await home.run_of(job)
            output: Any = run.output
            assert (output["said"], output["title"]) == (["ann", "it was a picture", "solved"], "solved")
            assert output.get("tokens", [1, output.get("token")]) == [first.token, first.token + 2]
            assert run.token == first.token + 2
            assert run.last_safe_step == "solved"
            assert (await home.lane()).state == "available"
            assert not (await home.store.find(Review, {"open": "1"})).items


async def test_nothing_of_a_task_reaches_the_browser_once_it_is_taken(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home, home.worker():
            job = await home.submit("press_on", payload={"url": shop.url})

            async def pressed() -> bool:
                return len(shop.of("task", "/act")) > 3

            await until(pressed)
            live = await running()
            human = await live.take(ANN)
            await act(live, "document.title = 'person'")
            seen = len(shop.of("task", "/act"))
            await act(live, "document.querySelector('#go').click()")

            async def heard() -> bool:
                return bool(shop.of("person", "/act"))

            await until(heard)
            assert len(shop.of("task", "/act")) == seen
            assert len(shop.of("person", "/act")) == 1
            with pytest.raises(Conflict) as refused:
                await live.hand_back(HumanAnswer(by="ann"))
            assert refused.value.cause is ConflictReason.NOT_RESUMABLE
            human.release(message="ann is done")
            end = await human.ended()
            assert (end.reason, (await home.lane()).state) == (None, "available")
            (done,) = await home.settled(job)
            assert (done.state, done.stop_reason) == ("review", "TAKEN_OVER")
            run: Any = await home.store.get(RunRecord, done.run_id or "")
            assert [each["name"] for each in run.evidence["artifacts"]] == ["final.png"]
            assert run.final_url is not None


async def test_a_resumable_task_begins_anew_where_the_person_left_it(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home, home.worker():
            job = await home.submit("start_over", payload={"url": shop.url})

            async def pressed() -> bool:
                return bool(shop.of("task", "/act"))

            await until(pressed)
            live = await running()
            await live.take(ANN)
            await act(live, "document.title = 'ready'")
            await live.hand_back(HumanAnswer(by="ann"))
            (done,) = await home.settled(job)
            run = await home.run_of(job)
            assert (done.state, run.output) == ("completed", {"title": "ready", "token": 3})


async def test_a_task_that_may_have_ordered_does_not_begin_anew(sqlite_url: str, tmp_path: Path) -> None:
    app, ordered = App(renew_every=0.3), asyncio.Event()

    @app.task("order", resumable=True)
    async def order(run: Run) -> None:
        await run.page.goto(run.payload["url"] + "/?title=order")
        async with run.mutating("submit_order"):
            await run.page.click("#go")
        ordered.set()
        await asyncio.Event().wait()

    with Shop() as shop:
        async with house(app, sqlite_url, tmp_path) as home, home.worker():
            job = await home.submit("order", payload={"url": shop.url})
            await ordered.wait()
            live = await running()
            human = await live.take(ANN)
            assert not live.may_hand_back
            with pytest.raises(Conflict) as refused:
                await live.hand_back(HumanAnswer(by="ann"))
            assert refused.value.cause is ConflictReason.NOT_RESUMABLE
            assert refused.value.data["why"] == "may_be_done_twice"
            assert "mutating section submit_order was left" in refused.value.message
            human.release(message="ann is done")
            await human.ended()
            (done,) = await home.settled(job)
            assert (done.state, done.stop_reason) == ("review", "TAKEN_OVER")
            assert len(shop.of("order", "/act")) == 1


async def test_a_person_may_answer_without_taking_control_or_not_come_at_all(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home, home.worker():
            job = await home.submit("ask", payload={"url": shop.url})
            live = await asking(home)
            await live.hand_back(HumanAnswer(by="ann", note="go on"))
            (done,) = await home.settled(job)
            output: Any = (await home.run_of(job)).output
            assert (done.state, output["said"][1], output["tokens"]) == ("completed", "go on", [1, 1])
            late = await home.submit("ask", payload={"url": shop.url, "timeout": 0.01})
            (done,) = await home.settled(late)
            assert (done.state, done.stop_reason) == ("review", "HUMAN_REVIEW_REQUIRED")
            assert "nobody came within 0.01 s" in done.detail


async def test_a_person_who_leaves_or_a_worker_that_stops_ends_in_a_clean_close(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasekeeper.runtime.person_control.IDLE", timedelta(seconds=0.2))
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home, home.worker():
            job = await home.submit("ask", payload={"url": shop.url})
            human = await (await asking(home)).take(ANN)
            end = await human.ended()
            assert (end.reason, end.message) == ("TIMEOUT", "no client for 0.2 s")
            assert (await home.lane()).state == "available"
            (done,) = await home.settled(job)
            assert done.state == "review"
        monkeypatch.setattr("leasekeeper.runtime.person_control.IDLE", timedelta(hours=1))
        async with house(new_app(), sqlite_url, tmp_path) as home:
            async with home.worker() as stop:
                await home.submit("press_on", payload={"url": shop.url})
                live = await running()
                human = await live.take(ANN)
                stop.ask()
                stop.ask()
            assert (await human.ended()).reason == "WORKER_STOPPED"
            assert (await home.lane()).state == "available"


async def test_a_lease_that_is_lost_meanwhile_ends_the_browser(sqlite_url: str, tmp_path: Path) -> None:
    with Shop() as shop:
        async with house(new_app(), sqlite_url, tmp_path) as home, home.worker():
            await home.submit("ask", payload={"url": shop.url})
            human = await (await asking(home)).take(ANN)
            await home.store.decide(
                Decision(target=Target.LEASE, id=human.lease.lease_id, action=Action.REVOKE, note="stop", actor="eve")
            )
            async with asyncio.timeout(100):
                end = await human.ended()
            assert end.reason == "LEASE_LOST"
            assert (await home.store.get(Lease, human.lease.lease_id)).status == "revoked"
            Ledger(home.data).strike(human.lease.run_id)  # a sweeper does that, and none runs here
