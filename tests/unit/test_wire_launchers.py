"""Launchers in a fleet file: their calls are described whole and spelled right, and hold no secret."""

from typing import Any

import pytest

from leasekeeper.errors import InputError
from leasekeeper.wire import parse_fleet
from tests.launchers.stage import RECIPE

KEEP_IT = "seems to contain a secret; keep it in the launcher's token, and write {token} here"


def faults(calls: object, profile: str = "id-1") -> dict[str, str]:
    """Where each problem is, and what is said about it."""
    launcher = {"driver": "http", "url": "http://127.0.0.1:7777", "calls": calls}
    profiles = {"p": {"account": "a", "launcher": "l", "launcher_profile": profile}}
    with pytest.raises(InputError) as caught:
        parse_fleet({"launchers": {"l": launcher}, "accounts": {"a": {}}, "profiles": profiles})
    return {problem.where.removeprefix("launchers.l.calls."): problem.message for problem in caught.value.problems}


def with_step(name: str, **more: Any) -> dict[str, Any]:
    return {**RECIPE, name: {**RECIPE.get(name, {}), **more}}


@pytest.mark.parametrize(
    ("calls", "where", "says"),
    [
        ({"strat": {"path": "/x"}}, "strat", "no such field; did you mean start?"),
        (with_step("start", boddy={}), "start.boddy", "no such field; did you mean body?"),
        ({"start": {"method": "POST", "endpoint": "{e}"}}, "start.path", "is required: of the request"),
        ({"start": {"path": "/x"}}, "start.endpoint", "is required: where the browser is"),
        (with_step("stop", path="profile/stop"), "stop.path", "must be a path that begins with /"),
        (with_step("stop", method="STOP"), "stop.method", "must be GET, POST"),
        ({"status": {"path": "/s", "running": {"a": 1}}}, "status.idle", "is required: which answers mean"),
        (with_step("status", running="yes"), "status.running", "must be a condition on the answer"),
        (with_step("status", idle=[]), "status.idle", "must be a condition on the answer"),
        (with_step("status", idle={"a": {"b": 1}}), "status.idle", "must be a condition on the answer"),
        ({**RECIPE, "headers": {"X-Api-Key": "hunter2hunter2"}}, "headers.X-Api-Key", KEEP_IT),
        (with_step("stop", headers={"Authorization": "Bearer abc"}), "stop.headers.Authorization", KEEP_IT),
        (with_step("stop", headers={"X-Who": "Bearer abc"}), "stop.headers.X-Who", KEEP_IT),
        (with_step("stop", query={"token": "abc"}), "stop.query.token", KEEP_IT),
        (with_step("stop", body={"login": {"password": "abc"}}), "stop.body.password", KEEP_IT),
        (
            with_step("stop", url="http://me:abc@127.0.0.1/"),
            "stop.url",
            "must be an http or https address without user",
        ),
        (with_step("start", body={"x": "y" * 17_000}), "start.body", "must be a JSON object of at most 16 KiB"),
    ],
)
def test_a_call_that_cannot_work_is_refused_where_it_is_written(calls: object, where: str, says: str) -> None:
    found = faults(calls)
    assert (list(found), found[where].startswith(says)) == ([where], True), found


def test_all_calls_together_are_limited() -> None:
    big = {"x": "y" * 9_000}
    assert faults({**with_step("start", body=big), "stop": {"path": "/s", "body": big}}) == {
        "launchers.l.calls": "must take at most 16 KiB"
    }


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("wss://user:abc@browsers.example/devtools", "must not hold a user or password"),
        ("wss://browsers.example/?session=7&token=abc", "seems to contain a secret in its query"),
        ("http://[::1/devtools", "is not a URL that can be read"),
    ],
)
def test_a_devtools_url_holds_no_secret(url: str, says: str) -> None:
    assert faults(RECIPE, url)["profiles.p.launcher_profile"].startswith(says)


def test_what_the_launchers_own_token_fills_in_is_no_secret() -> None:
    calls = {
        **with_step("stop", query={"token": "{token}"}, headers={"X-Auth": "key {token}", "Accept-Language": "en"}),
        "headers": {"X-Api-Key": "{token}"},
        "limited": [{"code": [-1, -2], "msg": "~too many"}],
        "confirm_seconds": 1,
    }
    launcher = {"driver": "http", "url": "http://127.0.0.1:7777", "calls": calls}
    profile = {"account": "a", "launcher": "l", "launcher_profile": "wss://browsers.example/?token={token}&x=1"}
    fleet = parse_fleet({"launchers": {"l": launcher}, "accounts": {"a": {}}, "profiles": {"p": profile}})
    assert fleet.launchers["l"].calls == calls
