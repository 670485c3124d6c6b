"""Messages on their way from a store to a receiver: at least once, whoever dies, however many send at once."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import config
from leasekeeper.config import Config
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.deliveries import Delivery, DeliveryState
from leasekeeper.core.events import Event
from leasekeeper.core.ids import JobId, ProfileId, WorkerId
from leasekeeper.core.jobs import JobSpec
from leasekeeper.core.leases import Lease
from leasekeeper.errors import InputError, PartlyDone, StoreUnavailable
from leasekeeper.ports import LeaseRequest, Store
from leasekeeper.runtime.outbox import MAX_TO_UNRESPONSIVE, Outbox, Sender, Sent, sender_of
from leasekeeper.runtime.sweeper import sweep_here
from leasekeeper.stores import open_store
from leasekeeper.webhooks.message import new_secret, read_keys
from leasekeeper.webhooks.sending import read_networks
from tests.conformance.world import fleet, profile
from tests.runtime.stage import until
from tests.servers import closed_port
from tests.webhooks.receiver import SECRET, Message, receiving

LATER = timedelta(minutes=5)
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/webhooks/receiver.py"


@dataclass
class Post:
    """A store whose clock somebody sets, and settings that let messages go to this machine."""

    url: str
    config: Config
    shift: timedelta = timedelta(0)
    store: Store = field(init=False)

    def clock(self, real: datetime) -> datetime:
        return real + self.shift

    async def open(self) -> Store:
        return await open_store(self.url, policy=self.config.policy, clock=self.clock)

    def outbox(self, store: Store | None = None) -> Outbox:
        sender = Sender(
            keys=read_keys(self.config.webhooks.secret),
            networks=read_networks(self.config.webhooks.networks),
            timeout=self.config.webhooks.timeout,
        )
        return Outbox(store or self.store, self.config, sender)

    async def owe(self, *urls: str) -> list[str]:
        """A job per address that ended at once, and owes a message to it. Gives the ids of the messages."""
        before = {delivery.delivery_id for delivery in await self.all()}
        at = (await self.store.check()).now + timedelta(days=365)
        specs = [JobSpec(task="visit", profile_id=ProfileId("p1"), run_at=at, callback_url=url) for url in urls]
        for submitted in await self.store.submit(specs):
            decision = Decision(
                target=Target.JOB, id=submitted.job.job_id, action=Action.CANCEL, note="not needed", actor="ann"
            )
            await self.store.decide(decision)
        return sorted({delivery.delivery_id for delivery in await self.all()} - before)

    async def all(self) -> list[Delivery]:
        return list((await self.store.find(Delivery, limit=1000)).items)

    async def states(self) -> list[DeliveryState]:
        return [delivery.state for delivery in reversed(await self.all())]


def settings(url: str, **changes: str | float) -> Config:
    known: dict[str, str | float] = {"webhook_secret": SECRET, "webhook_networks": "127.0.0.1", "webhook_timeout": 60}
    return config.load({}, store=url, poll_every=0.05, **{**known, **changes})


@asynccontextmanager
async def posting(url: str, **changes: str | float) -> AsyncIterator[Post]:
    post = Post(url, settings(url, **changes))
    post.store = await post.open()
    try:
        await post.store.apply(fleet(profile("p1")), actor="ann")
        yield post
    finally:
        await post.store.close()


def failing(times: int, status: str | None = "503 Busy") -> Callable[[Message], str | None]:
    """Answers the first few messages so, and takes the rest."""
    left = [status] * times
    return lambda _: left.pop() if left else "200 OK"


async def test_what_is_owed_arrives_once_signed_and_is_on_record(store_url: str) -> None:
    async with posting(store_url) as post, receiving() as receiver:
        owed = await post.owe(*[receiver.url] * 10)
        sent = await post.outbox().once()
        assert (sent.delivered, sent.failed) == (10, 0)
        assert sorted(message.id for message in receiver.messages) == owed
        assert all(message.signed_with(SECRET) for message in receiver.messages)
        assert {message.said["type"] for message in receiver.messages} == {"job.cancelled"}
        assert await post.states() == [DeliveryState.DELIVERED] * 10
        events = (await post.store.find(Event, {"type": "webhook_delivered"})).items
        assert sorted(str(event.data["delivery_id"]) for event in events) == owed
        again = await post.outbox().once()
        assert (again.delivered, again.failed, len(receiver.messages)) == (0, 0, 10)


async def test_many_senders_at_once_send_each_message_once(store_url: str) -> None:
    async with posting(store_url) as post, receiving() as receiver:
        owed = await post.owe(*[receiver.url] * 40)
        stores = [await post.open() for _ in range(3)]
        try:
            sent = await asyncio.gather(*(post.outbox(store).once() for store in (post.store, *stores)))
        finally:
            for store in stores:
                await store.close()
        assert sum(each.delivered for each in sent) == 40
        assert sorted(message.id for message in receiver.messages) == owed


async def test_what_failed_is_sent_again_later_with_the_same_id(store_url: str) -> None:
    async with posting(store_url) as post, receiving(failing(2)) as receiver:
        (owed,) = await post.owe(receiver.url)
        for expected in (DeliveryState.PENDING, DeliveryState.PENDING, DeliveryState.DELIVERED):
            await post.outbox().once()
            assert await post.states() == [expected]
            await post.outbox().once()  # not due yet
            post.shift += LATER * 1.2
        assert [message.id for message in receiver.messages] == [owed] * 3
        assert len({message.body for message in receiver.messages}) == 1


async def test_a_receiver_that_took_it_and_hung_up_gets_it_again(store_url: str) -> None:
    async with posting(store_url, webhook_timeout=0.3) as post, receiving(failing(1, None)) as receiver:
        (owed,) = await post.owe(receiver.url)
        sent = await post.outbox().once()
        assert (sent.delivered, sent.failed) == (0, 1)
        assert (await post.all())[0].answer == "no response within 0.3 s"
        post.shift += LATER
        await post.outbox().once()
        assert [message.id for message in receiver.messages] == [owed, owed]
        assert await post.states() == [DeliveryState.DELIVERED]


SENDER = """
import asyncio, sys
from leasekeeper import config
from leasekeeper.runtime.sweeper import sweep_here
from leasekeeper.stores import open_store

async def main():
    settings = config.load({}, store=sys.argv[1], webhook_secret=sys.argv[2], webhook_networks="127.0.0.1",
                           webhook_timeout=300, data_dir=sys.argv[3])
    store = await open_store(settings.store, policy=settings.policy)
    await sweep_here(store, settings)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_sender_that_vanished_in_the_middle_is_followed_by_another(
    store_url: str, tmp_path: Path, how: signal.Signals
) -> None:
    async with posting(store_url) as post, receiving(failing(1, None)) as receiver:
        (owed,) = await post.owe(receiver.url)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SENDER, store_url, SECRET, str(tmp_path / "data")
        )
        try:
            await receiver.came.wait()
            process.send_signal(how)
            sent = await post.outbox().once()
            assert (sent.delivered, len(receiver.messages)) == (0, 1), "it is still the other's"
            post.shift += timedelta(minutes=15)
            sent = await post.outbox().once()
            assert sent.delivered == 1
            assert [message.id for message in receiver.messages] == [owed, owed]
        finally:
            if how is signal.SIGSTOP:
                process.kill()
            await process.wait()
        assert await post.states() == [DeliveryState.DELIVERED]


async def test_a_receiver_that_hangs_holds_up_nobody_else(store_url: str) -> None:
    async with posting(store_url) as post, receiving(lambda _: None) as dead, receiving() as live:
        await post.owe(*[dead.url] * 50, *[live.url] * 20)
        outbox, stop = post.outbox(), asyncio.Event()
        running = asyncio.create_task(outbox.run(stop))
        try:
            while len(live.messages) < 20:
                live.came.clear()
                await live.came.wait()
            assert len(dead.messages) <= 8
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_it_is_sent_while_the_outbox_runs_and_what_is_under_way_may_end(store_url: str) -> None:
    async with posting(store_url) as post, receiving() as receiver:
        stop = asyncio.Event()
        other = await post.open()
        running = asyncio.create_task(post.outbox(other).run(stop))
        try:
            for _ in range(3):
                receiver.came.clear()
                await post.owe(receiver.url)
                await receiver.came.wait()
            stop.set()
            await running
        finally:
            await other.close()
        assert await post.states() == [DeliveryState.DELIVERED] * 3
        assert len(receiver.messages) == 3


class Deaf:
    """A store that cannot keep what came of an attempt, for a while."""

    def __init__(self, store: Store, times: int) -> None:
        self._store, self.left = store, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def settle_deliveries(self, attempts: Any) -> Any:
        if self.left:
            self.left -= 1
            raise StoreUnavailable("the store is away")
        return await self._store.settle_deliveries(attempts)


async def test_an_answer_that_the_store_could_not_keep_is_reported_again_and_not_sent_again(store_url: str) -> None:
    async with posting(store_url) as post, receiving() as receiver:
        await post.owe(receiver.url)
        store: Any = Deaf(post.store, 3)
        stop = asyncio.Event()
        running = asyncio.create_task(post.outbox(store).run(stop))
        await until(lambda: _delivered(post))
        stop.set()
        await running
        assert (store.left, len(receiver.messages)) == (0, 1)


async def _delivered(post: Post) -> bool:
    return await post.states() == [DeliveryState.DELIVERED]


async def test_without_a_secret_nothing_is_sent_and_that_is_said_if_nobody_else_sends(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with posting(sqlite_url, webhook_secret="", data_dir=str(tmp_path)) as post, receiving() as receiver:
        await sweep_here(post.store, post.config)
        await post.owe(receiver.url)
        await sweep_here(post.store, post.config)
        assert caplog.messages == [], "somebody else may be about to send it"
        post.shift += LATER
        await sweep_here(post.store, post.config)
        (said,) = caplog.messages
        assert "LEASEKEEPER_WEBHOOK_SECRET is not set here" in said
        assert receiver.messages == []
        assert await post.states() == [DeliveryState.PENDING]


@pytest.mark.parametrize("wrong", [{"webhook_secret": "hunter2"}, {"webhook_networks": "here"}])
async def test_settings_that_are_wrong_keep_no_lease_from_its_end(
    sqlite_url: str, tmp_path: Path, wrong: dict[str, str]
) -> None:
    async with posting(sqlite_url, data_dir=str(tmp_path), **wrong) as post:
        lease = await post.store.acquire(
            LeaseRequest(profile_id=ProfileId("p1"), worker_id=WorkerId("w"), incarnation="w-1")
        )
        post.shift += LATER
        with pytest.raises(PartlyDone, match=r"the sweep is done, but webhooks were not sent: .*LEASEKEEPER_WEBHOOK_"):
            await sweep_here(post.store, post.config)
        assert (await post.store.get(Lease, lease.lease.lease_id)).status == "expired"


async def test_what_cannot_be_sent_at_all_is_an_attempt_like_any_other(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Delivery) -> bytes:
        raise RuntimeError("hunter2")

    monkeypatch.setattr("leasekeeper.runtime.outbox.body_of", broken)
    async with posting(sqlite_url) as post:
        await post.owe("http://127.0.0.1/")
        sent = await post.outbox().once()
        assert (sent.delivered, sent.failed) == (0, 1)
        assert (await post.all())[0].answer == "not sent: RuntimeError"
        assert "hunter2" not in caplog.text


@contextmanager
def silent_hosts(count: int) -> Iterator[list[str]]:
    """Addresses where a connection is made, and nobody is there to answer."""
    with ExitStack() as stack:
        port, urls = 0, []
        for number in range(1, count + 1):
            listener = stack.enter_context(socket.socket())
            listener.bind((f"127.0.1.{number}", port))
            listener.listen()
            port = listener.getsockname()[1]
            urls.append(f"http://127.0.1.{number}:{port}/")
        yield urls


async def test_many_hosts_that_are_silent_hold_up_nobody_else(store_url: str) -> None:
    """More of them than there are places, each with more messages than it is given at once."""
    async with (
        posting(store_url, webhook_timeout=2, webhook_networks="127.0.0.0/8") as post,
        receiving() as live,
    ):
        with silent_hosts(80) as silent:
            await post.owe(*silent * 3)
            running = asyncio.create_task(post.outbox().run(asyncio.Event()))
            try:
                await until(lambda: _tried(post, 64))
                await post.owe(*[live.url] * 8)
                while len(live.messages) < 8:
                    live.came.clear()
                    await live.came.wait()
                waiting = [delivery for delivery in await post.all() if delivery.attempts == 0]
                assert len(waiting) > 80, "the live one came before most of what is owed to the others"
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


def test_silent_hosts_get_one_message_at_a_time_and_a_part_of_the_places() -> None:
    nothing: Any = None
    sender = Sender(keys=read_keys(SECRET), networks=(), timeout=timedelta(seconds=1))
    outbox = Outbox(nothing, nothing, sender)
    under_way = [("busy", 4), ("less", 1), ("silent0", 1)]
    for number, host in enumerate(host for host, count in under_way for _ in range(count)):
        task: Any = number
        outbox._sending[task] = delivery_to(host)
    outbox._unresponsive = {f"silent{n}" for n in range(40)}
    request = outbox._request(50)
    assert (request.limit, request.slow, request.slow_places) == (50, outbox._unresponsive, MAX_TO_UNRESPONSIVE - 1)
    assert request.room == {"busy": 0, "less": 3} | {f"silent{n}": 1 if n else 0 for n in range(40)}


async def test_hosts_with_nothing_due_shut_nobody_out(sqlite_url: str) -> None:
    """More hosts than places for such were refused and given up; one that was restarting is served when it is back."""
    async with posting(sqlite_url) as post, receiving() as receiver:
        outbox = post.outbox()
        gone = {f"gone{n}.example" for n in range(2 * MAX_TO_UNRESPONSIVE)}
        outbox._unresponsive = gone | {receiver.url.split("/")[2]}
        await post.owe(*[receiver.url] * 6)
        assert (await outbox.once()).delivered == 6


async def test_one_turn_goes_through_all_hosts(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasekeeper.stores.sql.sending.MAX_HOSTS", 2)
    async with posting(sqlite_url, webhook_networks="127.0.0.0/8") as post:
        with silent_hosts(9) as urls:
            await post.owe(*urls)
            outbox = post.outbox()
            await outbox._record_and_take(Sent())
            under_way = sorted(delivery.host for delivery in outbox._sending.values())
            for task in outbox._sending:
                task.cancel()
            assert under_way == sorted(url.split("/")[2] for url in urls)


def delivery_to(host: str) -> Delivery:
    at = datetime(2031, 5, 6, tzinfo=UTC)
    return Delivery(delivery_id="d", job_id=JobId("j"), type="t", url="u", host=host, body={}, created_at=at, due_at=at)


async def _tried(post: Post, count: int) -> bool:
    return sum(1 for delivery in await post.all() if delivery.attempts) >= count


async def test_a_sweep_sends_what_is_due(sqlite_url: str, tmp_path: Path) -> None:
    async with posting(sqlite_url, data_dir=str(tmp_path)) as post, receiving() as receiver:
        with closed_port() as nobody:
            await post.owe(receiver.url, receiver.url, f"http://127.0.0.1:{nobody}/")
            swept = await sweep_here(post.store, post.config)
        assert (swept.webhooks, swept.webhooks_failed) == (2, 1)


@pytest.mark.parametrize("wrong", [{"webhook_secret": "hunter2"}, {"webhook_networks": "here"}])
async def test_settings_that_are_wrong_are_reported_before_anything_starts(
    sqlite_url: str, wrong: dict[str, str]
) -> None:
    async with posting(sqlite_url) as post:
        with pytest.raises(InputError, match="LEASEKEEPER_WEBHOOK_"):
            await sender_of(post.store, settings(sqlite_url, **wrong))


def test_the_secret_shows_in_no_repr_of_the_settings() -> None:
    assert SECRET not in repr(settings("sqlite:///x.db"))


async def test_a_replayed_message_goes_out_again(sqlite_url: str) -> None:
    async with posting(sqlite_url) as post, receiving(failing(1, "410 Gone")) as receiver:
        (owed,) = await post.owe(receiver.url)
        await post.outbox().once()
        assert await post.states() == [DeliveryState.EXHAUSTED]
        await post.store.decide(
            Decision(target=Target.WEBHOOK, id=owed, action=Action.REPLAY, note="it is back", actor="ann")
        )
        await post.outbox().once()
        assert await post.states() == [DeliveryState.DELIVERED]
        assert len(receiver.messages) == 2


async def test_the_example_receiver_takes_what_is_genuine_and_nothing_else(sqlite_url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLE),
        "0",
        env={"WEBHOOK_SECRET": SECRET},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().split()[-1]
        async with posting(sqlite_url) as post:
            await post.owe(url)
            await post.outbox().once()
            (job,) = [delivery.job_id for delivery in await post.all()]
            assert await post.states() == [DeliveryState.DELIVERED]
            assert (await process.stdout.readline()).decode() == f"job.cancelled {job}\n"
            post.config = settings(sqlite_url, webhook_secret=new_secret())
            await post.owe(url)
            await post.outbox().once()
            assert (await post.all())[0].answer == "HTTP 401"
    finally:
        process.kill()
        await process.wait()


async def test_the_log_says_which_host_takes_no_messages_now_and_then_and_when_it_does_again(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "leasekeeper")
    answers = ["200 OK", "200 OK", "410 Gone", "503 Busy", "503 Busy", "503 Busy"]
    async with posting(sqlite_url) as post, receiving(lambda _: answers.pop()) as receiver:
        outbox, host = post.outbox(), receiver.url.split("/")[2]
        owed = await post.owe(*[receiver.url] * 3)
        await outbox.once()
        reported = f"webhook to {host} failed: HTTP 503; it will be retried"
        assert caplog.messages == [reported]
        monkeypatch.setattr("leasekeeper.runtime.outbox.LOG_EVERY_SECONDS", 0.0)
        post.shift += timedelta(seconds=10)
        await outbox.once()
        works, given_up = sorted(caplog.messages[1:], key=len)
        assert works == f"webhooks to {host} work again"
        assert given_up.startswith(f"webhook to {host} is exhausted: HTTP 410; to send it again, replay ")
        assert any(each in given_up for each in owed)
