"""Every seeded bug is noticed, for the reason it should be; its story alone says nothing."""

import pytest

from tests.chaos.seeded import BUGS, Bug

every_bug = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))


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
