"""GoLogin's desktop program. No call says whether a profile runs: a confirmed stop and a closed endpoint must prove it.

After a 429 its cloud API may block the token for good: calls are spaced (`calls_per_minute`) and not retried at once.
"""

from typing import Any, Final

LAUNCHER: Final[dict[str, Any]] = {
    "url": "http://localhost:36912",
    "start": {
        "method": "POST",
        "path": "/browser/start-profile",
        "body": {"profileId": "{profile}", "sync": True},
        "endpoint": "{wsUrl}",
        "busy": [{"message": "~already"}, {"error": "~already"}],
    },
    "stop": {
        "method": "POST",
        "path": "/browser/stop-profile",
        "body": {"profileId": "{profile}"},
        "idle": [{"http.status": 404}, {"message": "~not running"}],
    },
    "list": {
        "url": "https://api.gologin.com",
        "method": "GET",
        "path": "/browser/v2",
        "query": {"page": "{page}"},
        "items": "profiles",
        "id": "id",
        "name": "name",
        "page_size": 30,
    },
}
