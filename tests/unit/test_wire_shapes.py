"""Every type of the port, there and back through JSON; its schema; and what is refused."""

import json
import re
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasekeeper.core.depth import MAX_DEPTH
from leasekeeper.core.jobs import Job
from leasekeeper.core.why_answer import Why
from leasekeeper.errors import InputError
from leasekeeper.ports import Grant, Page, Renewed, Stats
from leasekeeper.runtime.person import Person
from leasekeeper.runtime.remote_session import RemoteAnswer, SessionNews
from leasekeeper.runtime.session_terms import SessionTerms
from leasekeeper.wire import decode, encode_in_full, from_document, schema_of, to_document
from leasekeeper.wire.shapes import VERSION, port_types
from tests.unit.records import a_grant, a_job

TYPES = [*port_types(), Why, SessionNews, RemoteAnswer]
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
LEAF = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
JSON = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    datetime: st.datetimes(timezones=st.just(UTC)),
    timedelta: st.timedeltas(timedelta(0), timedelta(days=9_999)),
    object: JSON,
}


def values(hint: Any, bound: Any = None) -> st.SearchStrategy[Any]:
    """Values of a type, from its own hints. `bound` is what a generic type holds."""
    hint = bound if not isinstance(hint, type) and hint.__class__.__name__ == "TypeVar" else hint
    hint = getattr(hint, "__supertype__", hint)
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin in (Union, UnionType):
        (inner,) = (each for each in arguments if each is not NoneType)
        return st.none() | values(inner, bound)
    if isinstance(origin, type) and issubclass(origin, StrEnum):
        return st.sampled_from(origin)
    if is_dataclass(origin) and isinstance(origin, type):
        hints = get_type_hints(origin)
        inner = arguments[0] if arguments else None
        return st.builds(origin, **{field.name: values(hints[field.name], inner) for field in fields(origin)})
    if origin is tuple and arguments[-1] is not ...:
        return st.tuples(*(values(each, bound) for each in arguments))
    if len(arguments) == 2 and arguments[1] is not ...:
        return st.dictionaries(TEXT, values(arguments[1], bound), max_size=3)
    return st.lists(values(arguments[0], bound), max_size=3).map(tuple)


JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (NoneType,),
    "object": (dict,),
    "array": (list,),
}


def fits(value: Any, schema: dict[str, Any], defs: dict[str, Any]) -> bool:
    """Whether a value is what a schema says: the few words of JSON Schema that ours are made of."""
    if "$ref" in schema:
        return fits(value, defs[schema["$ref"].rpartition("/")[2]], defs)
    if "anyOf" in schema:
        return any(fits(value, each, defs) for each in schema["anyOf"])
    kind = schema.get("type")
    if kind is not None and (
        not isinstance(value, JSON_TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")
    ):
        return False
    if isinstance(value, str):
        return value in schema.get("enum", [value]) and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, list):
        kinds = schema.get("prefixItems", [schema.get("items", {})] * len(value))
        return len(kinds) == len(value) and all(fits(*pair, defs) for pair in zip(value, kinds, strict=True))
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        if any(name not in value for name in schema.get("required", [])):
            return False
        return all(others is not False or name in known for name in value) and all(
            fits(item, known.get(name, others), defs) for name, item in value.items()
        )
    return True


def through_json(value: object) -> Any:
    return json.loads(json.dumps(encode_in_full(value)))


@pytest.mark.parametrize("hint", TYPES, ids=str)
def test_every_type_of_the_port_can_be_read_back(hint: Any) -> None:
    schema = schema_of(hint)
    name = hint.__name__ + "".join(f"Of{each.__name__}" for each in get_args(hint))

    @settings(derandomize=True, max_examples=10, deadline=None)
    @given(values(hint))
    def reads_back(value: Any) -> None:
        sent = through_json(value)
        assert decode(hint, sent) == value
        assert fits(sent, {"$ref": f"#/$defs/{name}"}, schema["$defs"])

    reads_back()


def test_the_types_of_the_port_are_found() -> None:
    found = {getattr(kind, "__name__", str(kind)) for kind in TYPES}
    expected = "Grant Submitted Settled Renewed HandedOver Stats StoreInfo WhyFacts Delivery Change Decided Lease Job"
    asked = "ClaimRequest LeaseRequest Ending Resolution Decision WorkerReport Retention DeliveryRequest Fleet JobSpec"
    assert {*expected.split(), *asked.split(), "Renewal", "LeaseRef", "Attempt", "Event"} <= found
    assert Page[Job] in TYPES


def test_names_are_those_of_the_wire() -> None:
    sent = through_json(a_grant())
    assert sent["lease"]["fencing_token"] == 7
    assert decode(Grant, sent) == a_grant()


@pytest.mark.parametrize(
    ("hint", "change", "where"),
    [
        (Job, {"colour": "red"}, "colour"),
        (Job, {"state": "sleeping"}, "state"),
        (Job, {"attempt": "1"}, "attempt"),
        (Job, {"attempt": True}, "attempt"),
        (Job, {"created_at": "yesterday"}, "created_at"),
        (Job, {"labels": ["a"]}, "labels"),
        (Job, {"allowed_actions": "click"}, "allowed_actions"),
    ],
)
def test_what_a_type_does_not_have_is_refused_with_its_path(hint: Any, change: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as refused:
        decode(hint, {**through_json(a_job()), **change})
    assert [problem.where for problem in refused.value.problems] == [where]


def test_a_field_that_is_missing_is_named_unless_it_has_a_default() -> None:
    sent = through_json(a_job())
    del sent["task"], sent["notes"]
    with pytest.raises(InputError) as refused:
        decode(Job, sent)
    assert [str(problem) for problem in refused.value.problems] == ["task: is required"]


def test_a_fault_deep_inside_is_found() -> None:
    sent = through_json(Page(items=(a_job(), a_job())))
    sent["items"][1]["mode"] = "private"
    with pytest.raises(InputError) as refused:
        decode(Page[Job], sent)
    assert [problem.where for problem in refused.value.problems] == ["items[1].mode"]


def test_what_is_nested_too_deep_is_refused() -> None:
    deep: object = 1
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(InputError, match="at most 32 levels"):
        decode(Job, {**through_json(a_job()), "payload": {"a": deep}})


def test_a_document_has_a_version_and_no_other_is_read() -> None:
    document = json.loads(json.dumps(to_document(a_grant())))
    assert document["version"] == VERSION
    assert from_document(Grant, document) == a_grant()
    for version in (VERSION + 1, 0, None, True, "1"):
        with pytest.raises(InputError, match="the one this program knows"):
            from_document(Grant, {**document, "version": version})
    nothing: list[object] = [None, [], {}, {"version": VERSION}]
    for wrong in nothing:
        with pytest.raises(InputError):
            from_document(Renewed, wrong)


def test_the_schema_defines_all_that_a_type_holds() -> None:
    schema = schema_of(Grant, Stats)
    assert {"Grant", "Lease", "Profile", "Job", "Retry", "Backoff", "Stats"} <= set(schema["$defs"])
    assert not fits({}, {"$ref": "#/$defs/Grant"}, schema["$defs"])


def test_news_leave_out_what_there_is_not() -> None:
    news = SessionNews(owner="o", hash="h", lease=a_grant().lease, terms=SessionTerms())
    assert not {"person", "asks", "passed_to"} & news.as_json().keys(), "an older server knows none of them"
    assert decode(SessionNews, news.as_json()) == news
    asks = replace(news, person=Person(name="Ann", note="n"), asks="sign in", passed_to="r2")
    assert decode(SessionNews, asks.as_json()) == asks
