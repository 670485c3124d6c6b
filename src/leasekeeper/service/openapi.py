"""OpenAPI 3.1 from the route table: the same kinds that read a request describe it, so they cannot disagree."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from leasekeeper.service.problems import MEDIA, STATUSES, problem_schema
from leasekeeper.service.routing import JSON, Parameter, Route
from leasekeeper.version import __version__
from leasekeeper.wire.shapes import schema_of, shape_of

_DEFS: Final = "#/$defs/"
_SCHEMAS: Final = "#/components/schemas/"
_TITLES: Final[Mapping[int, str]] = {
    400: "Something in the request is wrong; nothing was done.",
    401: "No valid token.",
    403: "The token does not allow this.",
    404: "No such record.",
    405: "The path does not know this method.",
    409: "The record is in another state than the request needs.",
    410: "The lease is not live any more.",
    412: "The record was changed since it was read.",
    413: "The body is too large.",
    421: "The server does not go by this name.",
    429: "Too many failed attempts to authenticate.",
    500: "A bug in the server.",
    503: "The store cannot be used now.",
}


def openapi(routes: Iterable[Route]) -> dict[str, Any]:
    """The document."""
    table = tuple(routes)
    paths: dict[str, dict[str, Any]] = {}
    for row in table:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row)
    types = [row.answers for row in table if row.answers is not None and not isinstance(row.answers, Mapping)]
    arguments = [_argument_types(row) for row in table if row.tag == "store"]
    schemas = schema_of(*types, *(each for some in arguments for each in some))["$defs"]
    # Lists leave out the payloads of jobs.
    schemas["Job"]["required"] = [name for name in schemas["Job"]["required"] if name != "payload"]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Leasekeeper",
            "version": __version__,
            "description": "Leases and an account-aware job queue for persistent browser profiles.",
        },
        "security": [{"token": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "lk_ID_SECRET"}},
            "schemas": {**_moved(schemas), "Problem": problem_schema()},
        },
    }


def _argument_types(row: Route) -> list[Any]:
    """The types of a store operation's arguments: they are described beside those of its answers."""
    from leasekeeper.wire.shapes import port_types

    return port_types() if row.path.endswith("/check") else []


def _operation(row: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _name(row),
        "summary": row.summary,
        "tags": [row.tag],
        "parameters": [
            *(_path_parameter(name) for name in re.findall(r"{(\w+)}", row.path)),
            *(_parameter(each) for each in row.parameters),
        ],
        "responses": _responses(row),
    }
    if row.body is not None:
        operation["requestBody"] = {
            "required": row.body.required,
            "content": {JSON: {"schema": _moved(dict(row.body.schema()))}},
        }
    if row.needs is None:
        operation["security"] = []
    else:
        operation["description"] = f"Needs a token with scope `{row.needs.scope}`."
    return operation


def _name(row: Route) -> str:
    words = [word for word in re.split(r"\W+", row.path) if word not in ("", "v1", "id")]
    return "_".join([row.method.lower(), *words, *(["one"] if row.path.endswith("{id}") else [])])


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _parameter(each: Parameter) -> dict[str, Any]:
    return {
        "name": each.name,
        "in": each.place,
        "description": f"{each.doc}. Must be {each.kind.rule}.",
        "schema": each.kind.schema(),
    }


def _responses(row: Route) -> dict[str, Any]:
    silent = row.answers is None and row.media == JSON and row.status == 200
    status = str(204 if silent else row.status)
    answer: dict[str, Any] = {"description": "Done."}
    if row.media != JSON:
        answer["content"] = {row.media: {"schema": {"type": "string"}}}
    elif row.answers is not None:
        answer["content"] = {JSON: {"schema": _answer_schema(row.answers)}}
    responses = {status: answer}
    if row.path == "/v1/jobs" and row.method == "POST":
        responses["200"] = {**answer, "description": "All of them were submitted before."}
    for problem in sorted(_problems(row)):
        responses[str(problem)] = {
            "description": _TITLES.get(problem, "Refused; nothing was done."),
            "content": {MEDIA: {"schema": {"$ref": f"{_SCHEMAS}Problem"}}},
        }
    return responses


def _problems(row: Route) -> set[int]:
    """The statuses that a call may be refused with."""
    every = {status for _, status in STATUSES}
    if row.needs is None:
        return {400, 405, 421, 429, 500, 503}
    return every


def _answer_schema(answers: Any) -> Any:
    if isinstance(answers, Mapping):
        return _moved(dict(answers))
    return _moved(shape_of(answers).schema())


def _moved(schema: Any) -> Any:
    """The schema, with its references changed to where OpenAPI keeps definitions."""
    match schema:
        case {"$ref": str(ref)} if ref.startswith(_DEFS):
            return {"$ref": _SCHEMAS + ref.removeprefix(_DEFS)}
        case dict():
            return {name: _moved(value) for name, value in schema.items()}
        case list() | tuple():
            return [_moved(value) for value in schema]
        case _:
            return schema
