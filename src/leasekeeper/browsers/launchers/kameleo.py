"""Kameleo's local API. Kameleo itself listens at the DevTools address, and a connection there starts the profile. So
only the status call is used to check that the browser has ended, not the endpoint."""

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
    # -1 means no limit.
    "plan": {"method": "GET", "path": "/general/user-info", "cap": "runningUserProfiles.total.maximumLimit"},
    "list": {"method": "GET", "path": "/profiles", "items": "", "id": "id", "name": "name"},
}
