"""Errors ⇄ JSON: code, message, problems with their path, and the fields that each class declares.

A program in another language matches the code where Python matches the class.
"""

from functools import cache

from leasekeeper.errors import LeasekeeperError, Problem, error_tree
from leasekeeper.wire.encoding import encode_in_full
from leasekeeper.wire.kinds import Problems
from leasekeeper.wire.shapes import decode, shape_of


def error_to_json(error: LeasekeeperError) -> dict[str, object]:
    """The error in plain JSON types. `problems` and `data` are left out where there are none."""
    kind = _published(type(error))
    answer: dict[str, object] = {"code": kind.code, "message": error.message}
    if error.problems:
        answer["problems"] = [{"where": problem.where, "message": problem.message} for problem in error.problems]
    data = {name: encode_in_full(error.data[name]) for name in kind.declared() if name in error.data}
    return {**answer, "data": data} if data else answer


def error_from_json(answer: object) -> LeasekeeperError:
    """The error that was sent. A code that this program does not know becomes the root of all errors."""
    found = decode(dict[str, object], answer)
    kind = _by_code().get(str(found.get("code")), LeasekeeperError)
    problems = decode(tuple[Problem, ...], found.get("problems", []))
    sent = decode(dict[str, object], found.get("data", {}))
    faults = Problems()
    data = {
        name: shape_of(hint).read(sent[name], f"data.{name}", faults)
        for name, hint in kind.declared().items()
        if name in sent
    }
    faults.raise_any(f"the data of error {kind.code} cannot be read")
    return kind.restored(decode(str, found.get("message", "")), problems, data)


@cache
def _by_code() -> dict[str, type[LeasekeeperError]]:
    return {kind.code: kind for kind, _ in error_tree()}


def _published(kind: type[LeasekeeperError]) -> type[LeasekeeperError]:
    """The public class of an error: for a private subclass, the public one that it derives from."""
    return next(each for each in kind.__mro__ if each in _by_code().values())
