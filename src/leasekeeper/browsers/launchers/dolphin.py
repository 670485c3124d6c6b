"""Dolphin{anty}'s local API. For a moment after a stop, a start is refused as "duplicate": so status is asked twice."""

from typing import Any, Final

LAUNCHER: Final[dict[str, Any]] = {
    "url": "http://localhost:3001",
    "confirm_seconds": 1.0,
    "start": {
        "method": "GET",
        "path": "/v1.0/browser_profiles/{profile}/start",
        "query": {"automation": 1, "headless": "{headless_digit}"},
        "endpoint": "ws://127.0.0.1:{automation.port}{automation.wsEndpoint}",
        "ok": [{"success": True}],
        "busy": [{"errorObject.code": "E_BROWSER_RUN_DUPLICATE"}],
    },
    "stop": {
        "method": "GET",
        "path": "/v1.0/browser_profiles/{profile}/stop",
        "ok": [{"success": True}],
        "idle": [{"http.status": 404}],
    },
    "status": {
        "method": "GET",
        "path": "/v1.0/browser_profiles/{profile}/active",
        "running": [{"active": True}, {"automation": True}, {"status": "running"}],
        "idle": [{"active": False}, {"http.status": 404}],
    },
    "list": {
        "url": "https://dolphin-anty-api.com",
        "method": "GET",
        "path": "/browser_profiles",
        "query": {"limit": 50, "page": "{page}"},
        "items": "data",
        "id": "id",
        "name": "name",
        "page_size": 50,
    },
}
