"""The picture on the terminal: it fits whatever there is, and the newest of the story is never what is left out."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leasekeeper.cli.demo_live import picture
from leasekeeper.cli.demo_summary import look_around, table
from leasekeeper.cli.table import Screen
from leasekeeper.core.ids import AccountId, JobId, ProfileId
from leasekeeper.core.profiles import Lane, ProfileState
from leasekeeper.demo.folder import Place
from leasekeeper.demo.narration import Line
from leasekeeper.demo.scenario import Scene
from leasekeeper.ports import Stats
from tests.unit.records import a_lease

NOW = datetime(2026, 5, 1, 9, 30, tzinfo=UTC)
LANES = [
    Lane(profile_id=ProfileId(f"books_us_{n}"), account_id=AccountId("books_us"), state_at=NOW, waiting_at=NOW)
    for n in range(10)
]
HELD = a_lease(
    profile_id="books_us_0", worker_id="worker-1", job_id=JobId("j"), last_safe_step="dashboard_open", open_section=None
)
SCENE = Scene(
    now=NOW,
    began_at=NOW - timedelta(seconds=12),
    stats=Stats(now=NOW, jobs={"completed": 3, "running": 1}, profiles={"available": 9, "leased": 1}),
    lanes=[replace(LANES[0], state=ProfileState.LEASED), *LANES[1:]],
    leases={"books_us_0": [HELD]},
    tasks={"j": "export_orders"},
    requests=41,
    clicks=5,
)
STORY = [Line(at=NOW, about="books_us_0", text=f"something happened, number {n}, " + "and " * 30) for n in range(8)]


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("rows", [8, 20, 23, 49])
def test_the_picture_fits_the_terminal_and_ends_with_the_newest(columns: int, rows: int) -> None:
    lines = picture(SCENE, STORY, Screen(width=columns, colours=False), rows)
    assert len(lines) <= rows
    assert max(map(len, lines)) <= columns
    if rows > 17:
        assert "number 7" in lines[-1]


def test_it_shows_holder_task_and_last_safe_step() -> None:
    lines = picture(SCENE, (), Screen(width=80, colours=False), 40)
    assert lines[0] == "leasekeeper demo  12 s   41 requests, 5 of them clicks"
    assert lines[1].split() == ["jobs", "1", "running", "3", "completed"]
    assert lines[5].split() == ["books_us_0", "leased", "worker-1", "export_orders", "dashboard_open"]


def test_an_open_section_is_shown_instead_of_the_step() -> None:
    inside = replace(SCENE, leases={"books_us_0": [replace(HELD, open_section="export_orders")]})
    assert "inside export_orders" in "\n".join(picture(inside, (), Screen(width=80, colours=False), 40))


def test_a_long_reason_goes_on_below_itself() -> None:
    rows = [("a", "review", "one two three four five six seven eight"), ("b", "completed", "")]
    assert table(("WHO", "STATE", "WHY"), rows, Screen(width=40, colours=False), state=1) == [
        "WHO  STATE      WHY",
        "a    review     one two three four five",
        "                six seven eight",
        "b    completed",
    ]
    assert max(map(len, table(("WHO", "STATE", "WHY"), rows, Screen(width=None, colours=False)))) == 55


def test_what_to_type_next_works_in_the_shell_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(called: Path | str) -> str:
        """How the line about reviews begins, for somebody who called the program so."""
        monkeypatch.setattr("sys.argv", [str(called), "demo"])
        (line,) = (line for line in look_around(Place(folder=tmp_path / "a demo")) if line.endswith(" reviews"))
        return line.removesuffix(" reviews").strip()

    home = tmp_path / "my clone"
    program = home / ".venv/bin/leasekeeper"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(program.with_name("python")))
    monkeypatch.chdir(home)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert typed(".venv/bin/leasekeeper") == ".venv/bin/leasekeeper"
    assert typed(program) == ".venv/bin/leasekeeper"
    assert typed("-c") == ".venv/bin/leasekeeper", "the one beside this Python"
    monkeypatch.chdir(tmp_path)
    assert typed(program) == "'my clone/.venv/bin/leasekeeper'"
    monkeypatch.chdir(program.parent)
    assert typed(program) == "./leasekeeper"
    monkeypatch.chdir("/")
    monkeypatch.setenv("PATH", str(program.parent))
    assert typed(program) == "leasekeeper"
    program.unlink()
    assert typed(program) == "leasekeeper"
    lines = list(look_around(Place(folder=tmp_path / "a demo")))
    assert f"  export LEASEKEEPER_DATA_DIR='{tmp_path}/a demo/data'" in lines
