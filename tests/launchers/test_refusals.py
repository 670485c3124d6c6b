"""Calls that a launcher does not carry out: they are the launcher's matter, never the profile's or the job's."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leasekeeper.browsers.keeper.launcher_end import LauncherEnd
from leasekeeper.browsers.keeper.main import _refuse
from leasekeeper.browsers.keeper_reports import read_report
from leasekeeper.browsers.launchers import describe
from leasekeeper.core.failures import Reason
from leasekeeper.core.ids import LauncherId
from leasekeeper.core.launchers import Launcher
from leasekeeper.errors import InputError
from leasekeeper.evidence.redact import Redactor
from leasekeeper.runtime.inventory import inventory
from leasekeeper.runtime.launchers import Launchers, pace_key
from leasekeeper.stores import open_store
from tests.launchers.saying import TOKEN, Said, Saying
from tests.launchers.stage import launched, launched_fleet


@pytest.mark.parametrize(
    ("driver", "status", "body", "says"),
    [
        ("gologin", 401, {"message": f"jwt {TOKEN} is revoked"}, "start was refused: jwt [redacted] is revoked"),
        ("gologin", 429, {}, "too many requests"),
        ("adspower", 200, {"code": -1, "msg": "Too many request per second, please check"}, "not now, says the"),
        ("multilogin", 503, {"status": {"message": "agent restarts"}}, "agent restarts"),
    ],
)
def test_what_is_wrong_with_a_launcher_or_its_token_is_not_the_jobs_failure(
    saying: Saying, driver: str, status: int, body: object, says: str
) -> None:
    saying.answer = (status, {}, body)
    refused = saying.refusal(driver)
    assert (refused.reason, says in str(refused)) == (Reason.LAUNCHER_UNAVAILABLE, True), str(refused)


def test_a_start_that_is_refused_for_the_profile_fails_the_run(saying: Saying) -> None:
    saying.answer = (400, {}, {"message": "no such profile"})
    assert saying.refusal("gologin").reason == Reason.BROWSER_LAUNCH_FAILED


@pytest.mark.parametrize("runs", [True, False])
def test_a_start_that_a_gateway_gave_up_on_is_found_out_by_asking(saying: Saying, runs: bool) -> None:
    """A browser that was started all the same is stopped; else the launcher was away, and the job keeps its attempt."""
    idle: Said = (200, {}, {"running": False})
    started: Said = (200, {}, {"running": runs})
    stopped: list[Said] = [(200, {}, {})] if runs else []
    saying.then = [idle, (504, {}, {"message": "gateway timeout"}), started, *stopped]
    saying.answer = idle
    refused = saying.refusal("http")
    steps = ["/profile/status", "/profile/start", "/profile/status"]
    assert saying.asked == steps + (["/profile/stop", "/profile/status"] if runs else [])
    assert refused.reason == (Reason.BROWSER_LAUNCH_FAILED if runs else Reason.LAUNCHER_UNAVAILABLE)


def test_a_start_is_not_sent_again_before_the_launcher_wants_it(saying: Saying, tmp_path: Path) -> None:
    saying.answer = (429, {"Retry-After": "30"}, {})
    _refuse(saying.refusal("gologin"), str(tmp_path), None)
    report = read_report(tmp_path)
    assert report is not None
    assert report.refused is not None
    assert report.refused.retry_after == timedelta(seconds=30)


def test_the_token_of_a_devtools_address_is_filled_in_by_the_keeper() -> None:
    launcher = Launcher(launcher_id=LauncherId("far"), driver="cdp", api_token="env:FAR")  # noqa: S106 - this reference
    url = "wss://browsers.example/{token}?session=7"
    end = LauncherEnd(describe(launcher, url, headless=True, token="a token/of ours"))  # noqa: S106 - of nothing
    assert end.start() == "wss://browsers.example/a%20token%2Fof%20ours?session=7"
    assert end.without_secrets(f"nobody at {end.start()}") == "nobody at wss://browsers.example/[redacted]?session=7"


async def test_after_a_refusal_starts_come_one_by_one_without_a_declared_limit(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that were all refused at once would all come back at once."""
    slept = list[float]()

    async def note(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("leasekeeper.runtime.launchers.sleep", note)
    store = await open_store(sqlite_url, clock=lambda _real: datetime(2026, 1, 1, tzinfo=UTC))
    launcher = Launcher(launcher_id=LauncherId("mlx"), driver="http")
    workers = [Launchers(store, Redactor()) for _ in range(3)]
    for worker in workers:
        await worker.turn(launcher)
    for worker in workers:
        await worker.back_off(launcher, Reason.LAUNCHER_UNAVAILABLE)
    for worker in workers:
        await worker.turn(launcher)
    assert slept == [0, 0, 0, 2, 3, 4]
    await store.close()


async def test_a_launcher_says_for_how_long_nobody_calls_it(sqlite_url: str) -> None:
    store = await open_store(sqlite_url, clock=lambda _real: datetime(2026, 1, 1, tzinfo=UTC))
    launcher = Launcher(launcher_id=LauncherId("mlx"), driver="http")
    launchers = Launchers(store, Redactor())
    for said, pause in [(30, 30), (1, 30), (3600, 60)]:
        await launchers.back_off(launcher, Reason.LAUNCHER_UNAVAILABLE, timedelta(seconds=said))
        assert await store.reserve_call(pace_key(launcher), timedelta()) == timedelta(seconds=pause)
    await store.close()


async def test_a_429_at_the_end_of_a_run_pauses_the_starts_of_everybody(sqlite_url: str, saying: Saying) -> None:
    """Also where the run failed for another reason."""
    store = await open_store(sqlite_url, clock=lambda _real: datetime(2026, 1, 1, tzinfo=UTC))
    launcher, profile = saying.record("http"), launched()
    await store.apply(launched_fleet(launcher, profile), actor="test")
    launchers = Launchers(store, Redactor())
    await launchers.refused_calls(profile, timedelta(seconds=20))
    assert await store.reserve_call(pace_key(launcher), timedelta()) == timedelta(seconds=20)
    await launchers.back_off(launcher, Reason.BROWSER_LAUNCH_FAILED, timedelta(seconds=30))
    assert await store.reserve_call(pace_key(launcher), timedelta()) == timedelta(seconds=30)
    await launchers.refused_calls(launched(launcher_id=LauncherId("gone")), timedelta(seconds=20))
    await store.close()


async def test_a_list_that_is_one_call_too_many_pauses_the_starts_of_everybody(sqlite_url: str, saying: Saying) -> None:
    store = await open_store(sqlite_url, clock=lambda _real: datetime(2026, 1, 1, tzinfo=UTC))
    launcher = saying.record("http")
    saying.answer = (429, {"Retry-After": "30"}, {})
    with pytest.raises(InputError, match=r"launcher mlx: .* too many requests"):
        await inventory(store, launcher)
    assert await store.reserve_call(pace_key(launcher), timedelta()) == timedelta(seconds=30)
    await store.close()
