"""docs/reference/http-api.md, from the OpenAPI document that a server answers `/openapi.json` with."""

import re
from collections.abc import Mapping
from typing import Any, Final

from leasekeeper.service.openapi import openapi
from leasekeeper.service.problems import STATUSES
from leasekeeper.service.routes import ROUTES
from tools.markdown import code, page, table

METHODS: Final = ("get", "post", "put", "patch", "delete")
STORE: Final = "store"
Call = tuple[str, str, Mapping[str, Any]]


def http_api() -> str:
    """Every call, by noun: what it does, which scope it needs, what it takes and answers."""
    groups: dict[str, list[Call]] = {}
    for path, methods in openapi(ROUTES)["paths"].items():
        for method in METHODS:
            if method in methods:
                groups.setdefault(methods[method]["tags"][0], []).append((method, path, methods[method]))
    store = groups.pop(STORE)
    return page(
        "HTTP API",
        "Calls of `leasekeeper server`, on one port. The server answers `/openapi.json` with the same as OpenAPI 3.1, "
        "with every schema, and `/docs` with a page of it. How to use it: "
        "[from another language](../howto/use-it-from-another-language.md).",
        "- A call carries `Authorization: Bearer lk_…`; [tokens](tokens.md) have scopes. Bodies and answers are JSON.\n"
        "- Lists are paged: `limit` is up to 1,000, and `after` of an answer continues it; no `after`: that was all. "
        "Filters are joined by *and*.\n"
        "- A record has an `ETag`. Send it as `If-Match` with a decision, and a record that was changed meanwhile is "
        "left alone (412).\n"
        "- Times are RFC 3339 with a zone. Unknown parameters and fields are refused.",
        "## Errors",
        "An error is a problem (`application/problem+json`, RFC 9457) with a stable `code`; every code is in "
        "[errors](errors.md). A code below one of these has its status, unless it is named here itself.",
        table(["status", "codes"], _statuses()),
        *(part for tag, calls in sorted(groups.items()) for part in (f"## {_title(tag)}", _calls(calls))),
        "## The store",
        "The [port](port.schema.json) itself, one call for each operation: what `--store https://…` uses. The body is "
        '`{"version": 1, "arguments": {…}}`, with a `request_id` so that a call whose answer was lost can be repeated.',
        table(["call", "scope", "what it does"], [(_path(call), _scope(call), call[2]["summary"]) for call in store]),
    )


def _title(tag: str) -> str:
    return tag.replace("-", " ").capitalize()


def _statuses() -> list[tuple[int, str]]:
    by_status: dict[int, list[str]] = {}
    for error, status in STATUSES:
        by_status.setdefault(status, []).append(error.code)
    return [(status, code(sorted(set(codes)))) for status, codes in sorted(by_status.items())]


def _calls(calls: list[Call]) -> str:
    rows = [(_path(call), _scope(call), call[2]["summary"], _takes(call[2]), _answers(call[2])) for call in calls]
    return table(["call", "scope", "what it does", "takes", "answers"], rows)


def _path(call: Call) -> str:
    return f"`{call[0].upper()} {call[1]}`"


def _scope(call: Call) -> str:
    found = re.search(r"scope (`\w+`)", call[2].get("description", ""))
    return found[1] if found else "none"


def _takes(operation: Mapping[str, Any]) -> str:
    """Parameters of the query by name, headers as such, and whether there is a body, or may be one."""
    query = [each["name"] for each in operation["parameters"] if each["in"] == "query"]
    headers = [each["name"] for each in operation["parameters"] if each["in"] == "header"]
    parts = [code(query)] if query else []
    parts += [f"headers {code(headers)}" if len(headers) > 1 else f"header {code(headers)}"] if headers else []
    if "requestBody" in operation:
        parts.append("a body" if operation["requestBody"]["required"] else "a body, or none")
    return "; ".join(parts)


def _answers(operation: Mapping[str, Any]) -> str:
    """The successful status, and the type of what comes with it."""
    status, answer = next((key, each) for key, each in operation["responses"].items() if key < "300")
    for media, content in answer.get("content", {}).items():
        shape = content["schema"]
        name = shape.get("$ref", "").rpartition("/")[2] if media == "application/json" else media
        return f"{status}, `{name}`" if name else status
    return str(status)
