"""AdsPower's local API. It always answers HTTP 200; `code` says whether the call worked, `msg` why not."""

from typing import Any, Final

LAUNCHER: Final[dict[str, Any]] = {
    "url": "http://local.adspower.net:50325",
    "limited": [{"code": -1, "msg": "~too many request"}],
    "start": {
        "method": "POST",
        "path": "/api/v2/browser-profile/start",
        "body": {"profile_id": "{profile}", "headless": "{headless_digit}"},
        "endpoint": "{data.ws.puppeteer}",
        "ok": [{"code": 0}],
        "busy": [{"code": -1, "msg": "~is being used"}, {"code": -1, "msg": "~already"}],
    },
    "stop": {
        "method": "POST",
        "path": "/api/v2/browser-profile/stop",
        "body": {"profile_id": "{profile}"},
        "ok": [{"code": 0}],
        "idle": [{"code": -1, "msg": "~not open"}, {"code": -1, "msg": "~not running"}],
    },
    "status": {
        "method": "GET",
        "path": "/api/v2/browser-profile/active",
        "query": {"profile_id": "{profile}"},
        "ok": [{"code": 0}],
        "running": [{"code": 0, "data.status": "Active"}],
        "idle": [{"code": 0, "data.status": "Inactive"}],
    },
    # Who has the profile open, on any machine of the team.
    "users": {
        "method": "POST",
        "path": "/api/v1/browser/cloud-active",
        "body": {"user_ids": "{profile}"},
        "ok": [{"code": 0}],
        "items": "data",
        "user": "account",
    },
    "list": {
        "method": "GET",
        "path": "/api/v1/user/list",
        "query": {"page": "{page}", "page_size": 100},
        "ok": [{"code": 0}],
        "items": "data.list",
        "id": "user_id",
        "name": "name",
        "page_size": 100,
    },
}
