"""Multilogin X: the launcher agent on this machine. Its answers have the result in `data`, errors in `status`."""

from typing import Any, Final

LAUNCHER: Final[dict[str, Any]] = {
    "url": "https://launcher.mlx.yt:45001",
    "start": {
        "method": "GET",
        "path": "/api/v2/profile/f/{folder}/p/{profile}/start",
        "query": {"automation_type": "playwright", "headless_mode": "{headless}"},
        "endpoint": "http://127.0.0.1:{data.port}",
        "busy": [{"status.error_code": "PROFILE_ALREADY_RUNNING"}],
    },
    "stop": {
        "method": "GET",
        "path": "/api/v1/profile/stop",
        "query": {"profile_id": "{profile}"},
        "idle": [{"status.error_code": ["PROFILE_ALREADY_STOPPED", "PROFILE_NOT_RUNNING"]}],
    },
    "status": {
        "method": "GET",
        "path": "/api/v2/profile/active",
        "running": [{"data": "~{profile}"}],
        "idle": [{"data": "!~{profile}"}],
    },
    "list": {
        "url": "https://api.multilogin.com",
        "method": "POST",
        "path": "/profile/search",
        "body": {"is_removed": False, "limit": 100, "offset": "{offset}", "search_text": "", "storage_type": "all"},
        "items": "data.profiles",
        "id": "id",
        "name": "name",
        "page_size": 100,
    },
}
