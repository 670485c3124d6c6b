"""Fixtures of launchers: a fake of each vendor, and one of the recipe's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launchers.stage import TOKEN, VENDORS, Fake, start_fake
from tests.launchers.stands import Stand, standing


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LAUNCHER_TOKEN", TOKEN)


@pytest.fixture(params=VENDORS)
def fake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fake]:
    launcher = start_fake(request.param, tmp_path / "launcher")
    yield launcher
    launcher.end()


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Fake]:
    launcher = start_fake("http", tmp_path / "launcher")
    yield launcher
    launcher.end()


@pytest.fixture
def stand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stand]:
    with standing(request.param, tmp_path) as made:
        yield made
