"""What a page of a launcher's browser sees, against what the profile is declared to be."""

import pytest

from leasekeeper.core.environment import browser_version, engine_of, mismatch
from tests.conformance.world import profile

AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/140.0.1.2 Safari/537.36"
SEEN = {"language": "de-DE", "timezone": "Europe/Berlin", "user_agent": AGENT}


@pytest.mark.parametrize(
    ("declared", "last", "says"),
    [
        ({}, None, None),
        ({"language": "de-de", "timezone": "Europe/Berlin"}, 140, None),
        ({"language": "en-US"}, None, "the page sees language de-DE, profile p1 is declared with en-US"),
        ({"timezone": "Asia/Tokyo"}, None, "the page sees timezone Europe/Berlin"),
        ({}, 139, None),
        ({}, 141, "the page sees browser version 140, profile p1 was last opened by 141"),
    ],
)
def test_a_difference_is_named(declared: dict[str, str], last: int | None, says: str | None) -> None:
    found = mismatch(profile("p1", **declared), SEEN, last)
    assert (found or "").startswith(says or "")
    assert (found is None) == (says is None)


def test_what_the_page_did_not_say_is_no_mismatch() -> None:
    assert mismatch(profile("p1", language="en-US", timezone="UTC"), {}, 200) is None


def test_versions() -> None:
    assert browser_version(SEEN) == "140.0.1.2"
    assert browser_version({"user_agent": "Firefox/120.0"}) is None
    assert [engine_of(text) for text in ("140.0.1.2", "7", "0", "", None, "x.1")] == [140, 7, None, None, None, None]
