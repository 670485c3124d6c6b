"""Values on their way into the stores and back: times, structures, text that nobody can keep."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leasekeeper.stores.postgres.values import encode, packer
from leasekeeper.stores.sql.codec import EPOCH, dump, from_us, to_us

TIMES = st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(9999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - Hypothesis wants bounds without a zone
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(TIMES)
@example(EPOCH)
@example(from_us(3_999_999_999_999_999))
@example(from_us(4_000_000_000_000_000))
def test_a_time_comes_back_to_the_microsecond(at: datetime) -> None:
    assert from_us(to_us(at)) == at
    assert to_us(at) == (at - EPOCH) // timedelta(microseconds=1)


@settings(max_examples=30)
@given(st.dictionaries(st.text(), JSON, min_size=1, max_size=3))
def test_a_structure_is_the_json_that_everybody_reads(value: dict[str, object]) -> None:
    assert json.loads(dump(value)) == value


@pytest.mark.parametrize("value", [{"a": {1}}, {"a": object()}, {(1, 2): "a"}])
def test_what_json_cannot_say_is_refused(value: dict[object, object]) -> None:
    with pytest.raises(TypeError):
        dump(value)


@pytest.mark.parametrize(
    ("kind", "value", "sent"),
    [
        ("text", None, None),
        ("text", "", b""),
        ("text", "café", "café".encode()),
        ("text", "a\0b", "a\N{REPLACEMENT CHARACTER}b".encode()),
        ("text", "half \ud83d", "half \N{REPLACEMENT CHARACTER}".encode()),
        ("bigint", None, None),
        ("bigint", -7, b"-7"),
        ("boolean", None, None),
        ("boolean", True, b"t"),
        ("boolean", False, b"f"),
    ],
)
def test_a_value_is_sent_the_same_by_its_own_type_and_by_its_columns(
    kind: str, value: object, sent: bytes | None
) -> None:
    assert packer([("a", kind)])({"a": value}) == [sent]
    assert encode(value) == sent
