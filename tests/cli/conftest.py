"""A store of one's own with a small fleet, and the real command line against it."""

from pathlib import Path

import pytest

from tests.cli.workplace import Workplace


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    """A new SQLite store without anything in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("LEASEKEEPER_STORE", "COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    place = Workplace(url=f"sqlite:///{tmp_path}/leasekeeper.db", directory=tmp_path)
    place.cli("db", "migrate")
    return place


@pytest.fixture
def place(empty: Workplace) -> Workplace:
    """A store with the fleet of `workplace.FLEET` in force and one worker that offers `buy` and `look`."""
    empty.apply()
    empty.start_worker()
    return empty
