"""Rules of launchers: which machine reaches one, and when a silent one is asked again."""

from datetime import UTC, datetime, timedelta

import pytest

from leasekeeper.core.ids import LauncherId
from leasekeeper.core.launchers import (
    Launcher,
    LauncherSaid,
    ask_again_at,
    can_be_asked_from,
    in_doubt,
    is_on_machine,
    must_answer_first,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("url", "here"),
    [
        (None, True),
        ("http://localhost:3001", True),
        ("http://127.0.0.9:1", True),
        ("http://[::1]:1", True),
        ("http://local.adspower.net:50325", True),
        ("https://launcher.mlx.yt:45001", True),
        ("http://launchers.internal:8000", False),
        ("http://10.0.0.7:8000", False),
    ],
)
def test_a_launcher_on_the_workers_machine_is_asked_from_there_alone(url: str | None, here: bool) -> None:
    launcher = Launcher(launcher_id=LauncherId("mlx"), driver="http", url=url)
    assert is_on_machine(launcher) is here
    assert can_be_asked_from(launcher, "m1", "m1")
    assert can_be_asked_from(launcher, "m1", "m2") is not here
    assert can_be_asked_from(launcher, None, None) is not here


@pytest.mark.parametrize(
    ("said", "doubt", "early", "waits"),
    [
        (LauncherSaid.NOT_ASKED, False, False, False),
        (LauncherSaid.NOT_ASKED, False, True, True),
        (LauncherSaid.NOT_ASKED, True, False, True),
        (LauncherSaid.SILENT, False, False, True),
        (LauncherSaid.RUNNING, True, False, False),
        (LauncherSaid.RUNNING, True, True, True),
        (LauncherSaid.IDLE, True, True, False),
        (LauncherSaid.CANNOT_SAY, True, True, False),
    ],
)
def test_what_is_waited_for(said: LauncherSaid, doubt: bool, early: bool, waits: bool) -> None:
    assert must_answer_first(said, in_doubt=doubt, early=early) is waits


def test_a_keeper_that_heard_nothing_from_the_launcher_leaves_a_doubt() -> None:
    def clauses(**found: bool) -> dict[str, object]:
        return {"keeper": {"clauses": {"graceful": False, **found}}}

    assert in_doubt(clauses(launcher_stopped=False))
    assert in_doubt(clauses(launcher_stopped=True, launcher_idle=False))
    assert not in_doubt(clauses(launcher_stopped=True, launcher_idle=True))
    assert not in_doubt(clauses())
    assert not in_doubt({"keeper": {"clean_close": True}})
    assert not in_doubt({})


def test_a_silent_launcher_is_asked_again_after_half_the_time_within_limits() -> None:
    def wait(over: float) -> float:
        now = T0 + timedelta(seconds=over)
        return (ask_again_at(T0, now) - now).total_seconds()

    assert [wait(over) for over in (0, 10, 100, 100_000)] == [2, 5, 50, 300]
