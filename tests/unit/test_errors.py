"""Every class of the tree of errors: a code of its own, and the same error after a trip through JSON."""

import ast
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

import leasekeeper
from leasekeeper.browsers.profile_directory import StrangeDirectory
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.errors import (
    Fail,
    InputError,
    LeaseExpired,
    LeasekeeperError,
    LeaseLost,
    Problem,
    error_tree,
)
from leasekeeper.wire import error_from_json, error_to_json

TREE = [kind for kind, _ in error_tree()]
PROBLEMS = [Problem("jobs[3].priority", "must be a whole number"), Problem("", "and 2 more")]
# One value for each type that a field of an error may have.
VALUES: dict[Any, object] = {
    str: "text",
    int: 7,
    datetime: datetime(2026, 5, 1, 9, 30, 0, 5, tzinfo=UTC),
    tuple[str, ...]: ("a", "b"),
    ConflictReason: ConflictReason.SECTION_OPEN,
}


def a_value(hint: Any) -> object:
    return VALUES[next((each for each in get_args(hint) if each in VALUES), hint)]


def filled(kind: type[LeasekeeperError]) -> LeasekeeperError:
    """An error of this class with every field that it declares."""
    return kind.restored("it did not work", PROBLEMS, {name: a_value(hint) for name, hint in kind.declared().items()})


def through_json(error: LeasekeeperError) -> LeasekeeperError:
    return error_from_json(json.loads(json.dumps(error_to_json(error))))


def test_the_tree_is_the_one_that_the_header_draws() -> None:
    from leasekeeper import errors

    drawn = errors.__doc__ or ""
    assert [kind.__name__ for kind in TREE if f" {kind.__name__} " not in drawn and kind is not LeasekeeperError] == []
    assert [kind.code for kind in TREE if kind.code not in drawn and kind is not LeasekeeperError] == []


def test_no_two_classes_share_a_code() -> None:
    assert len({kind.code for kind in TREE}) == len(TREE)
    assert LeaseExpired.code != LeaseLost.code


def codes_of(path: Path) -> list[str]:
    """The texts that classes of a module have as `code`."""
    classes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef)]
    found = []
    for each in (statement for node in classes for statement in node.body):
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        value = getattr(each, "value", None)
        if any(isinstance(target, ast.Name) and target.id == "code" for target in targets):
            found += [value.value] if isinstance(value, ast.Constant) and isinstance(value.value, str) else []
    return found


def test_no_class_elsewhere_has_a_code_of_its_own() -> None:
    """JSON has the code of the class in the tree: a code that a module gives its own class would be lost."""
    package = Path(leasekeeper.__file__).parent
    found = {str(path.relative_to(package)): codes for path in package.rglob("*.py") if (codes := codes_of(path))}
    assert set(found.pop("errors.py")) == {kind.code for kind in TREE}
    assert found == {}


@pytest.mark.parametrize("kind", TREE)
def test_every_error_survives_json(kind: type[LeasekeeperError]) -> None:
    sent = filled(kind)
    assert set(sent.data) == set(kind.declared())
    read = through_json(sent)
    assert type(read) is kind
    assert (read.code, read.message, read.problems, read.data) == (sent.code, sent.message, sent.problems, sent.data)
    assert str(read) == str(sent)
    assert {name: type(value) for name, value in read.data.items()} == {
        name: type(value) for name, value in sent.data.items()
    }


@pytest.mark.parametrize("kind", TREE)
def test_an_error_that_knows_nothing_more_survives_json(kind: type[LeasekeeperError]) -> None:
    sent = kind("it did not work")
    assert (type(through_json(sent)), str(through_json(sent))) == (kind, str(sent))


def test_an_error_of_a_module_s_own_arrives_as_the_kind_that_is_published() -> None:
    read = through_json(StrangeDirectory("PROFILE_MISMATCH", "another profile's", directory_token=7))
    assert type(read) is Fail
    assert (read.reason, read.detail) == ("PROFILE_MISMATCH", "another profile's")


def test_a_code_that_is_not_known_is_an_error_all_the_same() -> None:
    read = error_from_json({"code": "OF_A_LATER_VERSION", "message": "who knows", "data": {"x": 1}})
    assert (type(read), read.message, read.data) == (LeasekeeperError, "who knows", {})


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"code": "NOT_FOUND", "message": 5},
        {"code": "NOT_FOUND", "message": "x", "problems": [{"where": 1, "message": "y"}]},
        {"code": "NOT_FOUND", "message": "x", "data": {"id": ["p1"]}},
    ],
)
def test_what_is_no_error_is_refused(answer: object) -> None:
    with pytest.raises(InputError):
        error_from_json(answer)


def test_a_field_that_a_class_does_not_have_is_a_bug() -> None:
    with pytest.raises(TypeError, match="NotFound has no field colour"):
        next(kind for kind in TREE if kind.__name__ == "NotFound")("nothing here", colour="red")


@pytest.mark.parametrize(
    ("where", "moved"),
    [
        ("jobs[3].priority", "jobs[1003].priority"),
        ("jobs[0]", "jobs[1000]"),
        ("jobs", "jobs"),
        ("limit", "limit"),
        ("accounts[3]", "accounts[3]"),
        ("jobs[x].priority", "jobs[x].priority"),
    ],
)
def test_a_problem_of_a_part_is_found_in_the_whole_list(where: str, moved: str) -> None:
    assert Problem(where, "is wrong").moved("jobs", 1000) == Problem(moved, "is wrong")
