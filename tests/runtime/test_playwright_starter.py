"""The program that starts Playwright's node never starts itself."""

import os
from pathlib import Path

import playwright
import pytest

from leasekeeper.runtime.playwright_process import starting, write_starter

OWN_NODE = str(Path(playwright.__file__).parent / "driver" / "node")
VARIABLE = "PLAYWRIGHT_NODEJS_PATH"


def started(starter: Path | None) -> str:
    """The program that a starter starts."""
    assert starter is not None
    return starter.read_text().split()[-2]


@pytest.mark.parametrize("chosen", [None, "/bin/true"])
def test_two_that_start_at_once_both_start_the_node_that_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if chosen:
        monkeypatch.setenv(VARIABLE, chosen)
    first = write_starter(tmp_path)
    with starting.by(first):
        assert os.environ[VARIABLE] == str(first)
        second = write_starter(tmp_path)
        with starting.by(second):
            assert started(second) == (chosen or OWN_NODE)
    assert os.environ.get(VARIABLE) == chosen


def test_a_program_that_inherited_the_starter_starts_nodes_own_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "bin" / "playwright"))
    assert started(write_starter(tmp_path)) == OWN_NODE
