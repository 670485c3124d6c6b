"""Kameleo's local API. Its DevTools address belongs to Kameleo itself, and opening it starts the profile: nobody asks
there whether the browser has gone, the status has to do."""

from typing import Any, Final

LAUNCHER: Final[dict[str, Any]] = {
    "url": "http://localhost:5050",
    "endpoint_stays": True,
    "start": {
        "method": "POST",
        "path": "/profiles/{profile}/start",
        "body": {},
        "endpoint": "ws://{place}/playwright/{profile}",
        "busy": [{"http.status": 409}, {"errorCode": "~running"}, {"errorCode": "~locked"}],
    },
    "stop": {
        "method": "POST",
        "path": "/profiles/{profile}/stop",
        "body": {},
        "idle": [{"http.status": 404}, {"errorCode": "~not_running"}],
    },
    "status": {
        "method": "GET",
        "path": "/profiles/{profile}/status",
        "running": [{"lifetimeState": ["running", "starting", "loading", "locked", "terminating"]}],
        "idle": [{"lifetimeState": ["created", "terminated"]}],
    },
    # A limit of -1 is none.
    "plan": {"method": "GET", "path": "/general/user-info", "cap": "runningUserProfiles.total.maximumLimit"},
    "list": {"method": "GET", "path": "/profiles", "items": "", "id": "id", "name": "name"},
}
