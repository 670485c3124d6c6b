"""The scripts of "send alerts", as the page has them, run with messages that were really sent. In place of curl is a
program that writes down what it was to post."""

import json
import os
import re
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.config import load
from leasekeeper.core.alerts import NewEndpoint, secret_of
from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.ids import WorkerId
from leasekeeper.core.workers import WorkerReport
from leasekeeper.encryption import new_key, read_keyring
from leasekeeper.runtime.outbox import Outbox, sender_of
from leasekeeper.stores import open_store
from leasekeeper.webhooks.message import new_secret
from tests.conformance.world import fleet, profile
from tests.webhooks.receiver import receiving

PAGE = Path(__file__).parents[2] / "docs/howto/send-alerts.md"
SCRIPTS = {
    match[2]: match[1]
    for match in re.finditer(
        r"^```sh\n(#!/bin/sh\n# ([\w-]+\.sh): .*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
}
CURL = """#!/bin/sh
for last; do :; done
{ printf '%s ' "$last"; cat; } >> "$POSTED"
"""


class Clock:
    ahead = timedelta(0)

    def __call__(self, real: datetime) -> datetime:
        return real + self.ahead


async def real_messages(url: str) -> list[dict[str, Any]]:
    """What an endpoint gets when a profile is quarantined and cleared, and a worker falls silent and returns."""
    config, clock = load({}, store=url, secret_key=new_key(), webhook_networks="127.0.0.1"), Clock()
    store = await open_store(url, policy=config.policy, clock=clock)
    async with receiving() as receiver:
        sealed = read_keyring(config.secrets).seal(secret_of("ops"), new_secret())
        await store.apply(fleet(profile("p1")), actor="ann")
        names = ("profile.quarantined", "profile.decided", "review.opened", "worker.silent", "worker.returned")
        await store.add_endpoint(NewEndpoint(endpoint_id="ops", url=receiver.url, events=names), sealed, actor="ann")
        for action in (Action.QUARANTINE, Action.CLEAR):
            note = 'it asked for a "code"'
            await store.decide(Decision(target=Target.PROFILE, id="p1", action=action, note=note, actor="ann"))
        report = WorkerReport(worker_id=WorkerId("w1"), incarnation="i1", pool="default", tasks=("visit",))
        await store.report(report)
        clock.ahead = timedelta(hours=1)
        await store.mark_silent()
        await store.report(report)
        sender = await sender_of(store, config)
        assert sender is not None
        await Outbox(store, config, sender).once()
        await store.close()
        return [message.said for message in receiver.messages]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "curl").write_text(CURL)
    (tmp_path / "curl").chmod(0o700)
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o700)
    return tmp_path


def run(folder: Path, name: str, message: dict[str, Any], **environ: str) -> None:
    given = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "POSTED": str(folder / "posted"), **environ}
    subprocess.run([folder / name], input=json.dumps(message), text=True, check=True, cwd=folder, env=given, timeout=60)


async def test_the_recipes_make_of_messages_what_is_to_be_posted(sqlite_url: str, folder: Path) -> None:
    messages = {(said["type"], said["data"].get("profile_state")): said for said in await real_messages(sqlite_url)}
    quarantined = messages["profile.quarantined", "quarantined"]
    review = messages["review.opened", None]
    for said in (quarantined, review):
        run(folder, "on-alert.sh", said)
        run(folder, "to-slack.sh", said, SLACK_URL="https://hooks.example.com/x")
    assert (folder / "alerts.log").read_text().splitlines() == [
        f"{said['timestamp']} {said['type']} p1" for said in (quarantined, review)
    ]
    posted = re.findall(r"(https://\S+) (\{.*?^\})", (folder / "posted").read_text(), re.DOTALL | re.MULTILINE)
    assert {url for url, _ in posted} == {"https://hooks.example.com/x"}
    first, second = (json.loads(body)["text"] for _, body in posted)
    assert first == '*profile.quarantined* p1 it asked for a "code"'
    assert second.startswith("*review.opened* p1 ")
    assert 'it asked for a "code"' in second
    (folder / "posted").unlink()
    told = [
        quarantined,
        messages["profile.decided", "available"],
        messages["worker.silent", None],
        messages["worker.returned", None],
    ]
    for said in told:
        run(folder, "to-pagerduty.sh", said, PAGERDUTY_KEY="key-1")
    text = (folder / "posted").read_text()
    incidents = [json.loads(body) for body in re.findall(r"^https://\S+ (\{.*?^\})", text, re.DOTALL | re.MULTILINE)]
    assert [(each["routing_key"], each["event_action"], each["dedup_key"]) for each in incidents] == [
        ("key-1", "trigger", "leasekeeper/p1"),
        ("key-1", "resolve", "leasekeeper/p1"),
        ("key-1", "trigger", "leasekeeper/w1"),
        ("key-1", "resolve", "leasekeeper/w1"),
    ]
    assert {each["payload"]["severity"] for each in incidents} == {"error"}
