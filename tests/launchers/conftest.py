"""Fixtures of launchers: a fake of each vendor, and one of the recipe's."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launchers.saying import Saying
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


@pytest.fixture
def saying() -> Iterator[Saying]:
    server = Saying()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
