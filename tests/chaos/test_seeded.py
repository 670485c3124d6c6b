"""Every seeded bug is noticed, for the reason it should be; its story alone says nothing."""

from dataclasses import replace

import pytest

from tests.chaos.seeded import BUGS, Bug

# What the stores have in common is tried on SQLite daily, and on Redis, where the same operations run, in a release.
COMMON = [
    pytest.param(replace(bug, store="redis"), marks=pytest.mark.release, id=f"{bug.name.replace(' ', '-')}-on-redis")
    for bug in BUGS
    if bug.store == "sqlite"
]
every_bug = pytest.mark.parametrize(
    "bug", [*(pytest.param(bug, id=bug.name.replace(" ", "-")) for bug in BUGS), *COMMON]
)


@pytest.fixture
def url(bug: Bug, request: pytest.FixtureRequest) -> str:
    """An empty store of the kind that the story needs."""
    found: str = request.getfixturevalue(f"{bug.store}_url")
    return found


@every_bug
def test_a_seeded_bug_is_noticed(bug: Bug, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.mistake(monkeypatch)
    found = bug.story(url)
    assert any(bug.noticed in finding for finding in found), found


@every_bug
def test_the_same_story_without_the_bug_is_sound(bug: Bug, url: str) -> None:
    assert bug.story(url) == []
