"""What a keeper does with a launcher, without a worker: each vendor's answers, starts that lead to nothing, and what is
asked if it was killed itself."""

import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from leasekeeper.browsers.keeper import attached, launcher_end
from leasekeeper.browsers.keeper.attached import start_attached
from leasekeeper.browsers.keeper.capture import Cdp
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.launcher_end import LauncherEnd
from leasekeeper.browsers.keeper.orders import Orders, Refused
from leasekeeper.browsers.keeper.stop import stop
from leasekeeper.browsers.launcher import packages_folder
from leasekeeper.browsers.launcher_status import ASKS, ask
from leasekeeper.browsers.launchers import describe
from leasekeeper.core.failures import Reason
from leasekeeper.core.ids import LauncherId
from leasekeeper.core.launchers import Launcher, LauncherSaid, in_doubt
from tests.launchers.stage import TOKEN, Fake


def end_of(launcher: Launcher) -> LauncherEnd:
    return LauncherEnd(describe(launcher, "id-p1", headless=True, token=TOKEN))


def refusal(end: LauncherEnd) -> str:
    with pytest.raises(Refused) as refused:
        end.start()
    return refused.value.reason


def orders_for(launcher: Launcher, profile: str, folder: Path) -> Orders:
    (folder / "state").mkdir()
    described = describe(launcher, profile, headless=True, token=TOKEN)
    return Orders(
        browser=launcher.driver,
        user_data_dir=str(folder / "state"),
        profile_id="p1",
        lease_id="lease_1",
        token=1,
        run_id="run_1",
        folder=str(folder),
        deadline=boot_time() + 60,
        kill_at=boot_time() + 60,
        launcher={**described, "packages": packages_folder(), "idle_seconds": 1.0},
    )


def reached(launcher: Launcher, profile: str, folder: Path) -> Refused:
    """Start the profile and connect to it, as a keeper does; returns why that failed."""
    orders = orders_for(launcher, profile, folder)
    with pytest.raises(Refused) as refused:
        start_attached(orders)
    return refused.value


def test_a_profile_is_started_once_and_stopped_until_it_is_idle(fake: Fake) -> None:
    fake.fault("start", "busy")  # in the moment between the question and the start
    assert refusal(end_of(fake.record)) == Reason.PROFILE_IN_USE_ELSEWHERE
    fake.fault("start", "")
    end = end_of(fake.record)
    end.start()
    assert refusal(end_of(fake.record)) == Reason.PROFILE_IN_USE_ELSEWHERE
    assert fake.calls("stop") == 0
    assert end.stop(30)
    assert end.wait_idle(time.monotonic() + 30)
    assert end.idle is (True if end.can_say else None)


def test_a_keeper_that_wakes_up_past_its_lease_leaves_the_browser_alone(tmp_path: Path, recipe: Fake) -> None:
    """Whoever has the profile by now may have that very browser, and the launcher's stop names only the profile."""
    orders = orders_for(recipe.record, "id-p1", tmp_path)
    browser = start_attached(orders)
    orders.kill_at = boot_time() - 1
    assert (
        stop(browser, Cdp(browser, broken_off=False, inside=False), orders, by_itself=False, visited=True) == "cut off"
    )
    assert not browser.all_gone(boot_time())
    proof = browser.prove("cut off", all_gone=False)
    assert "the lease was over before it could be stopped" in str(proof["failing_clause"])
    assert recipe.calls("stop") == 0
    assert recipe.ask("/profile/status?profile_id=id-p1", token=TOKEN) == {"running": True}
    browser._connection._socket.close()
    browser.release()


def signal_browsers(fake: Fake, number: signal.Signals) -> None:
    for pid in fake.browsers():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def test_a_browser_that_hangs_where_the_stop_does_nothing_is_in_doubt_until_it_has_gone(
    tmp_path: Path, recipe: Fake
) -> None:
    orders = orders_for(recipe.record, "id-p1", tmp_path)
    orders.close_seconds = orders.interrupt_seconds = 0.1
    browser = start_attached(orders)
    recipe.fault("stop", "nothing")
    signal_browsers(recipe, signal.SIGSTOP)
    way = stop(browser, Cdp(browser, broken_off=False, inside=False), orders, by_itself=False, visited=True)
    gone = browser.all_gone(boot_time())
    proof = browser.prove(way, all_gone=gone)
    assert (way, gone, in_doubt({"keeper": proof})) == ("cut off", False, True)
    assert "the launcher says that it runs" in str(proof["failing_clause"])
    assert ask(orders.launcher) is LauncherSaid.RUNNING
    recipe.fault("stop", "")
    signal_browsers(recipe, signal.SIGCONT)
    assert ask(orders.launcher) is LauncherSaid.IDLE
    assert browser.all_gone(boot_time())
    browser._connection._socket.close()
    browser.release()


def test_a_launcher_that_is_killed_during_a_start_is_asked_about_it_later(tmp_path: Path, recipe: Fake) -> None:
    """Its browser may live on, and nobody is there to stop it."""
    recipe.fault("start", "half_open")  # it has the browser, and never answers
    orders = orders_for(recipe.record, "id-p1", tmp_path)

    def kill() -> None:
        while not recipe.browsers():
            time.sleep(0.02)  # waits: for the launcher to start the browser
        recipe.kill()

    killing = threading.Thread(target=kill)
    killing.start()
    with pytest.raises(Refused) as refused:
        start_attached(orders)
    killing.join()
    assert (refused.value.reason, in_doubt({"keeper": refused.value.proof})) == (Reason.BROWSER_LAUNCH_FAILED, True)
    assert "whether the profile runs is not known" in refused.value.message


def test_a_devtools_address_that_stays_is_no_part_of_the_proof(tmp_path: Path, recipe: Fake) -> None:
    """Of driver `cdp`: a proxy in front of a browser, say. That it closed when asked has to do."""
    url = recipe.ask("/profile/start", {"profile_id": "id-p1", "headless": True}, token=TOKEN)["cdp_url"]
    record = replace(recipe.record, driver="cdp", calls={"endpoint_stays": True})
    orders = orders_for(record, url, tmp_path)
    browser = start_attached(orders)
    way = stop(browser, Cdp(browser, broken_off=False, inside=False), orders, by_itself=False, visited=True)
    proof = browser.prove(way, all_gone=browser.all_gone(boot_time()))
    clauses = {"graceful": True, "processes_gone": True, "launcher_stopped": True}
    assert proof == {"clauses": clauses, "failing_clause": ""}
    browser._connection._socket.close()
    browser.release()


def test_a_stop_whose_answer_was_lost_is_sent_again(fake: Fake) -> None:
    """A stop can be repeated: so a launcher that cannot say whether a profile runs confirms it all the same."""
    end = end_of(fake.record)
    fake.fault("stop", "lost")
    assert end.stop(10)
    assert fake.calls("stop") == 2


def test_a_browser_that_outlived_its_keeper_is_stopped_by_whoever_asks(recipe: Fake) -> None:
    described = describe(recipe.record, "id-p1", headless=True, token=TOKEN)
    LauncherEnd(described).start()
    recipe.fault("stop", "nothing")
    assert (ask(described), recipe.calls("stop")) == (LauncherSaid.RUNNING, ASKS)
    recipe.fault("stop", "")
    assert (ask(described), recipe.calls("stop")) == (LauncherSaid.IDLE, ASKS + 1)


@pytest.mark.parametrize("fault", ["wrong_json", "half_open", "dead_endpoint", "no_endpoint"])
def test_a_start_that_led_to_nothing_is_stopped(
    tmp_path: Path, recipe: Fake, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(attached, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(launcher_end, "SETTLE_SECONDS", 0.0)
    recipe.start_seconds = 1 if fault == "half_open" else 20
    recipe.fault("start", fault)
    refused = reached(recipe.record, "id-p1", tmp_path)
    assert (refused.reason, "the profile was stopped again" in refused.message) == (Reason.BROWSER_LAUNCH_FAILED, True)
    assert recipe.calls("stop") == 1


def test_a_devtools_address_where_nobody_is_fails_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attached, "CONNECT_SECONDS", 0.2)
    lab = Launcher(launcher_id=LauncherId("lab"), driver="cdp", api_token="env:FAKE_LAUNCHER_TOKEN")  # noqa: S106 - this reference
    refused = reached(lab, "ws://127.0.0.1:1/devtools/{token}", tmp_path)
    assert refused.reason == Reason.BROWSER_LAUNCH_FAILED
    assert ("127.0.0.1:1/devtools/[redacted]" in refused.message, TOKEN in refused.message) == (True, False)
