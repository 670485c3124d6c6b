"""W3C's `traceparent` as it comes in."""

import pytest

from leasekeeper.runtime.tracing import from_header, trace_id

IDS = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("header", [f"00-{IDS}", f" 00-{IDS} ", f"01-{IDS}", f"cc-{IDS}-what-comes-later"])
def test_a_header_of_any_version_is_kept_in_the_one_we_know(header: str) -> None:
    assert from_header(header) == f"00-{IDS}"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "00",
        f"ff-{IDS}",
        f"00-{IDS}-more",
        f"00-{IDS.upper()}",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
    ],
)
def test_a_header_that_is_not_valid_is_ignored(header: str | None) -> None:
    assert from_header(header) is None


def test_a_trace_is_found_by_its_id() -> None:
    assert trace_id(f"00-{IDS}") == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert trace_id(None) is None
