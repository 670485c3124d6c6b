"""Messages to registered endpoints, from the commit to a receiver that verifies with the reference library."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from leasekeeper.config import Config, load
from leasekeeper.core.alerts import Endpoint, EndpointState, NewEndpoint, secret_of
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.deliveries import Delivery, DeliveryState
from leasekeeper.encryption import new_key, read_keyring
from leasekeeper.ports import Store
from leasekeeper.runtime.outbox import Outbox, sender_of
from leasekeeper.stores import open_store
from leasekeeper.webhooks.message import new_secret
from tests.conformance.world import fleet, profile
from tests.webhooks.receiver import SECRET, receiving

KEY = new_key()


@asynccontextmanager
async def opened(url: str, **settings: str) -> AsyncIterator[tuple[Store, Config]]:
    config = load({}, store=url, secret_key=KEY, webhook_networks="127.0.0.1", **settings)
    store = await open_store(url, policy=config.policy)
    try:
        yield store, config
    finally:
        await store.close()


async def register(store: Store, config: Config, url: str, *events: str, secret: str) -> None:
    sealed = read_keyring(config.secrets).seal(secret_of("ops"), secret)
    await store.add_endpoint(NewEndpoint(endpoint_id="ops", url=url, events=events), sealed, actor="ann")


async def send(store: Store, config: Config) -> None:
    sender = await sender_of(store, config)
    assert sender is not None
    await Outbox(store, config, sender).once()


async def test_an_alert_is_verified_by_the_reference_library(sqlite_url: str) -> None:
    secret = new_secret()
    async with opened(sqlite_url) as (store, config), receiving() as receiver:
        await register(store, config, receiver.url, "profile.quarantined", secret=secret)
        await store.apply(fleet(profile("p1")), actor="ann")
        decision = Decision(target=Target.PROFILE, id="p1", action=Action.QUARANTINE, note="odd", actor="ann")
        await store.decide(decision)
        await send(store, config)
        (message,) = receiver.messages
        said = Webhook(secret).verify(message.body, message.headers)
        assert (said["type"], said["data"]["profile_id"]) == ("profile.quarantined", "p1")
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(message.body, message.headers)
        assert secret.encode() not in await asyncio.to_thread(Path(sqlite_url.removeprefix("sqlite:///")).read_bytes)


async def test_a_process_with_neither_key_sends_no_message_to_an_endpoint(sqlite_url: str) -> None:
    async with opened(sqlite_url, webhook_secret=SECRET) as (store, config), receiving() as receiver:
        await register(store, config, receiver.url, "*", secret=new_secret())
        await store.decide(Decision(target=Target.ENDPOINT, id="ops", action=Action.PING, note="try", actor="ann"))
        await send(store, load({}, store=sqlite_url, webhook_secret=SECRET, webhook_networks="127.0.0.1"))
        assert receiver.messages == []
        await send(store, config)
        assert [message.said["type"] for message in receiver.messages] == ["webhook.ping"]


async def test_a_secret_that_no_key_here_opens_is_an_answer_that_says_so(sqlite_url: str) -> None:
    async with opened(sqlite_url) as (store, config), receiving() as receiver:
        await register(store, config, receiver.url, "*", secret=new_secret())
        await store.decide(Decision(target=Target.ENDPOINT, id="ops", action=Action.PING, note="try", actor="ann"))
        await send(store, load({}, store=sqlite_url, secret_key=new_key(), webhook_networks="127.0.0.1"))
        (delivery,) = (await store.find(Delivery)).items
        assert delivery.state is DeliveryState.PENDING
        assert "LEASEKEEPER_SECRET_KEY" in delivery.answer
        assert receiver.messages == []


async def test_a_receiver_that_answers_410_is_disabled(sqlite_url: str) -> None:
    async with opened(sqlite_url) as (store, config), receiving(lambda _: "410 Gone") as receiver:
        await register(store, config, receiver.url, "*", secret=new_secret())
        await store.decide(Decision(target=Target.ENDPOINT, id="ops", action=Action.PING, note="try", actor="ann"))
        await send(store, config)
        endpoint = await store.get(Endpoint, "ops")
        assert (endpoint.state, endpoint.reason) == (EndpointState.DISABLED, "gone")


@pytest.mark.parametrize(("program", "state"), [("true", "delivered"), ("false", "pending")])
async def test_listen_verifies_prints_and_runs_a_command(sqlite_url: str, program: str, state: str) -> None:
    secret = new_secret()
    command = [
        sys.executable,
        "-m",
        "leasekeeper",
        "webhooks",
        "listen",
        "--on",
        "127.0.0.1:0",
        "--count",
        "1",
        "--json",
    ]
    environment = {**os.environ, "LEASEKEEPER_ENDPOINT_SECRET": secret}
    listener = await asyncio.create_subprocess_exec(
        *command, "--exec", program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert listener.stderr is not None
        assert listener.stdout is not None
        address = (await listener.stderr.readline()).decode().split()[-1]
        async with opened(sqlite_url) as (store, config):
            await register(store, config, address, "*", secret=new_secret())
            ping = Decision(target=Target.ENDPOINT, id="ops", action=Action.PING, note="try", actor="ann")
            await store.decide(ping)
            await send(store, config)
            assert (await store.find(Delivery)).items[0].answer == "HTTP 401"
            sealed = read_keyring(config.secrets).seal(secret_of("ops"), secret)
            await store.put_secret(sealed, actor="ann")
            await store.decide(ping)
            await send(store, config)
            assert (await store.find(Delivery)).items[0].state == state
        printed = json.loads((await listener.stdout.readline()).decode())
        assert (printed["type"], printed["data"]["endpoint_id"]) == ("webhook.ping", "ops")
        assert await listener.wait() == 0
    finally:
        if listener.returncode is None:
            listener.send_signal(signal.SIGKILL)
            await listener.wait()
