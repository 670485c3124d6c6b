"""The API's own reference: `/openapi.json`, and `/docs`, a page that loads nothing from other hosts."""

import json
from functools import cache
from html import escape
from typing import Any, Final

from starlette.responses import HTMLResponse, Response

from leasekeeper.service.openapi import openapi
from leasekeeper.service.routing import JSON, Call, Route

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font:13px/1.4 ui-monospace,monospace}h3{margin:1.5rem 0 .2rem}table{border-collapse:collapse;width:100%}"
    "td,th{border-bottom:1px solid #ccc;text-align:left;padding:.25rem .5rem;vertical-align:top}"
)


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document of every route."""
    from leasekeeper.service.routes import ROUTES

    return openapi(ROUTES)


async def openapi_json(_call: Call) -> Response:
    return Response(json.dumps(document(), ensure_ascii=False), media_type=JSON)


async def docs(_call: Call) -> Response:
    return HTMLResponse(_page())


@cache
def _page() -> str:
    parts = []
    for path, methods in document()["paths"].items():
        for method, row in methods.items():
            parts.append(f"<h3><code>{method.upper()} {escape(path)}</code></h3><p>{escape(row['summary'])} ")
            parts.append(escape(row.get("description", "Needs no token.")) + "</p>")
            named = [each for each in row["parameters"] if each["in"] != "path"]
            if named:
                rows = "".join(
                    f"<tr><td><code>{escape(each['name'])}</code></td><td>{escape(each['description'])}</td></tr>"
                    for each in named
                )
                parts.append(f"<table><tr><th>parameter</th><th>what</th></tr>{rows}</table>")
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Leasekeeper API</title><style>{_STYLE}</style><h1>Leasekeeper API</h1>"
        "<p>Every call carries <code>Authorization: Bearer lk_…</code>. Schemas of requests and answers are in "
        "<a href=openapi.json>openapi.json</a>. Errors are <code>application/problem+json</code> with a stable "
        f"<code>code</code>.</p>{''.join(parts)}</html>"
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="/openapi.json",
        summary="This API as OpenAPI 3.1.",
        handler=openapi_json,
        needs=None,
        answers={"type": "object"},
        tag="service",
    ),
    Route(
        method="GET",
        path="/docs",
        summary="This API as a page.",
        handler=docs,
        needs=None,
        answers={"type": "string"},
        media="text/html",
        tag="service",
    ),
)
