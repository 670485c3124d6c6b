"""The exported JSON Schemas: committed as they are generated, sound, and of one mind with the parser."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import wire
from leasekeeper.core.jobs import JobSpec
from leasekeeper.wire import fleet_schema, fleet_table, job_schema, job_table
from leasekeeper.wire.fleet import ACCOUNT, FLEET, PROFILE, PROXY
from leasekeeper.wire.jobs import BACKOFF, JOB, RETRY
from leasekeeper.wire.records import Record
from tests.unit.job_manifests import FULL
from tests.unit.test_wire_fleet import EXAMPLE

REFERENCE = Path(__file__).resolve().parents[2] / "docs/reference"
SCHEMAS = {"job": job_schema(), "fleet": fleet_schema()}
RECORDS = {
    "job": JOB,
    "retry": RETRY,
    "backoff": BACKOFF,
    "fleet": FLEET,
    "proxy": PROXY,
    "account": ACCOUNT,
    "profile": PROFILE,
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_committed_schema_is_the_generated_one(name: str) -> None:
    committed = json.loads((REFERENCE / f"{name}.schema.json").read_text(encoding="utf-8"))
    assert committed == SCHEMAS[name], "generated pages are old: run `make docs`"


def shapes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema and every schema inside it."""
    yield schema
    for inner in schema.get("properties", {}).values():
        yield from shapes(inner)
    for key in ("items", "additionalProperties", "propertyNames"):
        if isinstance(schema.get(key), dict):
            yield from shapes(schema[key])


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_names_its_draft_and_its_version(name: str) -> None:
    schema = SCHEMAS[name]
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:leasekeeper:{name}:1"
    assert schema["title"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_part_of_a_schema_has_a_type_and_its_bounds(name: str) -> None:
    for shape in shapes(SCHEMAS[name]):
        kind = {shape["type"]} if isinstance(shape["type"], str) else set(shape["type"])
        assert kind - {"null"} <= {"object", "array", "string", "integer", "number", "boolean"}
        if "string" in kind:
            assert "enum" in shape or "maxLength" in shape or "format" in shape
        if kind & {"integer", "number"}:
            assert shape["minimum"] <= shape["maximum"]
        if "array" in kind:
            assert shape["maxItems"]
        if "object" in kind and "properties" in shape:
            assert shape["additionalProperties"] is False
            assert all(inner["description"] for inner in shape["properties"].values())
        if "pattern" in shape:
            assert re.compile(shape["pattern"]).groups < 10
            assert shape["pattern"].startswith("^")
            assert shape["pattern"].endswith("$")


def accepts(schema: dict[str, Any], value: object) -> bool:
    """A small validator for the words that our schemas use: enough to hold the schema against the parser."""
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if value is None:
        return "null" in kinds
    if isinstance(value, bool):
        return "boolean" in kinds
    if isinstance(value, str):
        return (
            "string" in kinds
            and value in schema.get("enum", [value])
            and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
            and re.search(schema.get("pattern", ""), value) is not None
        )
    if isinstance(value, int | float):
        whole = isinstance(value, int) or value.is_integer()
        fits = "number" in kinds or ("integer" in kinds and whole)
        return fits and bool(schema["minimum"] <= value <= schema["maximum"])
    if isinstance(value, list):
        return (
            "array" in kinds
            and len(value) <= schema["maxItems"]
            and all(accepts(schema["items"], item) for item in value)
        )
    assert isinstance(value, dict)
    return "object" in kinds and accepts_object(schema, value)


def accepts_object(schema: dict[str, Any], value: dict[str, Any]) -> bool:
    for key, item in value.items():
        inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
        if inner is False or not accepts(schema.get("propertyNames", {"type": "string"}), key):
            return False
        if isinstance(inner, dict) and not accepts(inner, item):
            return False
    return all(
        any(set(option["required"]) <= set(value) for option in rule["anyOf"]) for rule in schema.get("allOf", [])
    )


def test_the_schema_accepts_what_the_parser_accepts() -> None:
    assert accepts(SCHEMAS["job"], FULL)
    assert accepts(SCHEMAS["job"], {"taskType": "t", "accountId": "a", "requiresExclusiveProfileLock": True})
    assert accepts(SCHEMAS["job"], {"task": "t", "profile_id": "p", "priority": None, "mode": None})
    from leasekeeper.wire.document import read_yaml

    assert accepts(SCHEMAS["fleet"], read_yaml(EXAMPLE, "the example"))


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"task": "t"},
        {"account_id": "a"},
        {"task": "t", "account_id": "a", "zzz": 1},
        {"task": "t", "account_id": "../a"},
        {"task": "t", "account_id": "a", "priority": 1001},
        {"task": "t", "account_id": "a", "mode": "x"},
        {"task": "t", "account_id": "a", "schema_version": 2},
        {"task": "t", "account_id": "a", "run_at": "2026-05-01T09:30:00"},
        {"task": "t", "account_id": "a", "retry": {"backoff": {"factor": 0}}},
        {"task": "t", "account_id": "a", "labels": {"a": 1}},
        {"task": "t", "account_id": "a", "humanReviewOnLockConflict": "yes"},
    ],
)
def test_the_schema_refuses_what_the_parser_refuses(job: dict[str, Any]) -> None:
    assert not accepts(SCHEMAS["job"], job)


def test_every_field_and_alias_is_in_the_schema() -> None:
    properties = SCHEMAS["job"]["properties"]
    for field in JOB.table:
        for name in JOB.names(field.name):
            assert properties[name].get("deprecated", False) is (name != field.name)
    assert {"task_id", "taskId", "taskType", "task_type", "requiresExclusiveProfileLock"} <= set(properties)


def test_the_fields_of_a_job_are_those_of_the_core() -> None:
    assert {field.name for field in JOB.table} - {"schema_version"} == {field.name for field in fields(JobSpec)}


def test_the_defaults_in_the_schema_are_those_of_the_core() -> None:
    properties = SCHEMAS["job"]["properties"]
    assert properties["max_attempts"]["default"] == 3
    assert properties["mode"]["default"] == "exclusive"
    assert properties["on_conflict"]["default"] == "wait"
    assert properties["conflict_delay_seconds"]["default"] == 300
    assert "default" not in properties["run_at"]
    assert PROFILE.schema()["properties"]["release_policy"]["default"] == "quarantine"


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_is_explained_in_the_docs_table(name: str) -> None:
    record: Record = RECORDS[name]
    for field, rule, _, doc in record.rows():
        assert field.strip("`")
        assert rule
        assert doc
    text = job_table() if name in ("job", "retry", "backoff") else fleet_table()
    assert [field.name for field in record.table if f"{field.name}`" not in text] == []


def test_the_docs_tables_are_well_formed_markdown() -> None:
    for line in (job_table() + fleet_table()).splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 5


def test_every_public_name_of_wire_can_be_loaded() -> None:
    assert [name for name in wire.__all__ if not callable(getattr(wire, name))] == []
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        wire.nonsense  # noqa: B018 - asking for it is the test
