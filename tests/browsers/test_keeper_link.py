"""The worker's side of the line, against a keeper that this test plays: no browser is needed to be wrong here."""

import asyncio
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.browsers.keeper.orders import Orders
from leasekeeper.browsers.keeper_browser import KeeperBrowser
from leasekeeper.browsers.keeper_link import KeeperLink
from leasekeeper.browsers.keeper_program import write_wrapper
from leasekeeper.browsers.keeper_reports import LaunchRefused, ReportUnreadable, read_report
from leasekeeper.core.browsers import DriverInfo, Launch, LaunchRefusal, LeaseTerms

CLAUSES = {"graceful": True, "processes_gone": True, "lock_gone": True, "exit_type_normal": True}
PROOF = {"clauses": CLAUSES, "failing_clause": ""}
REPORT: dict[str, Any] = {
    "version": 1,
    "profile_id": "shop",
    "run_id": "run_1",
    "lease_id": "lease_1",
    "token": 1,
    "refused": None,
    "cause": "closed",
    "stopped_by": "Browser.close",
    "exit_code": 0,
    "signal": None,
    "proof": PROOF,
    "untouched": False,
    "final_url": "https://shop.test/",
    "screenshot": None,
    "commands": [{"at": 1.5, "method": "Page.navigate", "url": "about:blank"}],
    "started_at": 1.0,
    "ended_at": 2.0,
    "revoke_reason": "",
}


def orders(folder: Path, **changes: Any) -> Orders:
    given: dict[str, Any] = {
        "browser": "/usr/bin/chromium",
        "user_data_dir": "/nowhere",
        "profile_id": "shop",
        "lease_id": "lease_1",
        "token": 1,
        "run_id": "run_1",
        "folder": str(folder),
        "deadline": 100.0,
        "kill_at": 110.0,
    }
    return Orders(**{**given, **changes})


class Played:
    """A keeper played by the test."""

    def __init__(self, folder: Path, secret: str | None = None) -> None:
        found = json.loads((folder / "keeper.json").read_text())
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect("\0" + found["control"])
        self._lines = self.socket.makefile("r", encoding="utf-8")
        self.say(hello=secret or found["secret"], pid=4711)

    def say(self, **message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> Any:
        line = self._lines.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


async def test_what_was_said_before_the_keeper_came_is_reported_when_it_comes(tmp_path: Path) -> None:
    link = KeeperLink(orders(tmp_path))
    for n in range(1000):
        link.extend(n, n + 10)
    link.revoke("lost")
    link.extend(5000, 5010)
    keeper = Played(tmp_path)
    assert keeper.hear() == {"deadline": 999, "kill_at": 1009}
    assert keeper.hear() == {"revoke": "lost"}
    assert keeper.hear() == {"deadline": 5000, "kill_at": 5010}
    keeper.close()
    link.close()


async def test_a_renewal_leaves_while_the_event_loop_is_blocked(tmp_path: Path) -> None:
    link = KeeperLink(orders(tmp_path))
    keeper = Played(tmp_path)
    renewing = threading.Thread(target=link.extend, args=(7, 8))
    renewing.start()
    assert keeper.hear() == {"deadline": 7, "kill_at": 8}, "this test blocks the loop while it listens"
    renewing.join()
    keeper.close()
    link.close()


async def test_a_keeper_that_does_not_read_holds_nobody_up(tmp_path: Path) -> None:
    link = KeeperLink(orders(tmp_path))
    keeper = Played(tmp_path)
    began = time.monotonic()
    for n in range(50_000):
        link.extend(n, n)
    link.revoke("lost")
    assert time.monotonic() - began < 20
    heard: list[Any] = []
    while not heard or "revoke" not in heard[-1]:
        heard.append(keeper.hear())
    assert heard[-2] == {"deadline": 49_999, "kill_at": 49_999}
    keeper.close()
    link.close()


async def test_a_stranger_without_the_secret_is_not_talked_to(tmp_path: Path) -> None:
    link = KeeperLink(orders(tmp_path))
    link.revoke("private")
    stranger = Played(tmp_path, "guessed")
    assert stranger.hear() is None
    silent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    silent.connect("\0" + json.loads((tmp_path / "keeper.json").read_text())["control"])
    keeper = Played(tmp_path)
    assert keeper.hear() == {"revoke": "private"}
    for end in (stranger, silent, keeper):
        end.close()
    link.close()


async def test_started_ended_and_the_report(tmp_path: Path) -> None:
    link = KeeperLink(orders(tmp_path))
    assert await link.ended(0.01) is None
    assert not link.over
    keeper = Played(tmp_path)
    keeper.say(started=1234)
    assert await link.started() == 1234
    assert link.keeper_pid == 4711
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    assert await link.ended(0.05) is None, "a report counts when the keeper says that it is complete"
    keeper.say(ended=True)
    report = await link.ended(20)
    assert report is not None
    assert report.proof.holds
    assert report.commands[0].method == "Page.navigate"
    assert link.over
    keeper.close()
    link.close()


async def test_a_refusal_reaches_those_who_wait(tmp_path: Path) -> None:
    link = KeeperLink(orders(tmp_path))
    waiting = asyncio.create_task(link.started())
    keeper = Played(tmp_path)
    refused = {"reason": "STALE_TOKEN", "message": "token 1 is below 9"}
    (tmp_path / "report.json").write_text(json.dumps({**REPORT, "refused": refused}))
    keeper.say(ended=True)
    with pytest.raises(LaunchRefused, match="token 1 is below 9") as reported:
        await waiting
    assert reported.value.reason == "STALE_TOKEN"
    keeper.close()
    link.close()


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        ("STALE_TOKEN", "PROFILE_IN_USE_ELSEWHERE"),
        ("BAD_ORDERS", "BROWSER_LAUNCH_FAILED"),
        ("LEASE_LOST", "LEASE_LOST"),
    ],
)
async def test_a_driver_gives_refusals_as_reasons_of_the_failure_table(
    tmp_path: Path, refusal: str, reason: str
) -> None:
    link = KeeperLink(orders(tmp_path))
    nothing = Launch(options={}), DriverInfo(program="/usr/bin/chromium"), None, 1.0
    browser = KeeperBrowser(link, *nothing, lambda _orders: None)
    assert browser.refusal() is None
    refused = {"reason": refusal, "message": "no"}
    (tmp_path / "report.json").write_text(json.dumps({**REPORT, "refused": refused}))
    assert browser.refusal() == LaunchRefusal(reason=reason, message="no")
    link.close()


async def test_a_keeper_that_vanishes_is_noticed(tmp_path: Path) -> None:
    link = KeeperLink(orders(tmp_path))
    Played(tmp_path).close()
    with pytest.raises(LaunchRefused) as reported:
        await link.started()
    assert reported.value.reason == "BROWSER_LAUNCH_FAILED"
    assert await link.ended(20) is None
    assert link.over
    terms = LeaseTerms(lease_id="l", token=2, run_id="r", folder=str(tmp_path / "r"), deadline=1, kill_at=2)
    with pytest.raises(LaunchRefused):
        await link.hand_over(terms)
    link.close()


async def test_hand_over_waits_for_the_answer(tmp_path: Path) -> None:
    link = KeeperLink(orders(tmp_path))
    keeper = Played(tmp_path)
    folder = tmp_path / "next"

    async def hand_over(token: int, timeout: float = 20) -> None:
        terms = LeaseTerms(lease_id="lease_2", token=token, run_id="run_2", folder=str(folder), deadline=5, kill_at=6)
        await link.hand_over(terms, timeout)

    handing = asyncio.create_task(hand_over(2))
    asked = await asyncio.to_thread(keeper.hear)
    assert asked["lease"] == {
        "lease_id": "lease_2",
        "token": 2,
        "run_id": "run_2",
        "folder": str(folder),
        "deadline": 5,
        "kill_at": 6,
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    keeper.say(leased=2)
    await handing
    assert (link.orders.lease_id, link.orders.folder) == ("lease_2", str(folder))
    handing = asyncio.create_task(hand_over(1))
    await asyncio.to_thread(keeper.hear)
    keeper.say(refused="STALE_TOKEN", message="token 1 is not above 2")
    with pytest.raises(LaunchRefused) as reported:
        await handing
    assert (reported.value.reason, reported.value.message) == ("STALE_TOKEN", "token 1 is not above 2")
    with pytest.raises(LaunchRefused, match="did not answer"):
        await hand_over(3, timeout=0.05)
    assert link.orders.token == 2
    keeper.close()
    link.close()


async def test_closing_notifies_the_keeper_and_flushes(tmp_path: Path) -> None:
    link = KeeperLink(orders(tmp_path))
    keeper = Played(tmp_path)
    keeper.say(started=1)
    await link.started()
    link.revoke("bye")
    link.close()
    link.close()
    assert keeper.hear() == {"revoke": "bye"}
    assert keeper.hear() is None
    link.extend(1, 2)
    link.revoke("too late")
    keeper.close()


def test_a_report_of_an_earlier_version_about_a_refusal_is_read(tmp_path: Path) -> None:
    refused = {"reason": "STALE_TOKEN", "message": "token 1 is below 9"}
    (tmp_path / "report.json").write_text(json.dumps({**REPORT, "refused": refused, "cause": ""}))
    report = read_report(tmp_path)
    assert report is not None
    assert (report.cause, report.refused and report.refused.reason) == (None, "STALE_TOKEN")


def test_no_report_is_none_and_a_strange_one_is_refused(tmp_path: Path) -> None:
    assert read_report(tmp_path) is None
    for content in ("", "[]", json.dumps({**REPORT, "version": 2}), json.dumps({"version": 1})):
        (tmp_path / "report.json").write_text(content)
        with pytest.raises(ReportUnreadable):
            read_report(tmp_path)


@pytest.mark.parametrize(
    "broken",
    [
        {"clauses": {**CLAUSES, "graceful": False}},
        {"clauses": {**CLAUSES, "lock_gone": 1}},
        {"clauses": {"graceful": True}},
        {"clauses": {}},
        {"failing_clause": "x"},
    ],
)
def test_a_proof_holds_only_if_every_clause_does(tmp_path: Path, broken: dict[str, Any]) -> None:
    (tmp_path / "report.json").write_text(json.dumps({**REPORT, "proof": {**PROOF, **broken}}))
    report = read_report(tmp_path)
    assert report is not None
    assert not report.proof.holds


def test_the_wrapper_is_written_once_and_repaired(tmp_path: Path) -> None:
    path = write_wrapper(tmp_path / "it's data")
    assert os.access(path, os.X_OK)
    first = path.stat()
    assert write_wrapper(tmp_path / "it's data") == path
    assert path.stat().st_ino == first.st_ino
    path.write_text("#!/bin/sh\nexit 1\n")
    write_wrapper(tmp_path / "it's data")
    assert "leasekeeper.browsers.keeper" in path.read_text()
    assert [entry.name for entry in path.parent.iterdir()] == ["keeper"]
