"""The public API as a program in any language uses it: submit, lists, decisions, why, the fleet, tokens."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from leasekeeper.lists import LISTS
from leasekeeper.service.routes import ROUTES
from leasekeeper.service.routes.records import NOUNS, VIEWS
from tests.serving import Served

FLEET = {
    "proxies": {"exit": {"server": "http://10.0.0.1:3128", "credentials": "secret:exit_login"}},
    "accounts": {"shop": {}},
    "profiles": {"store_us_018": {"account": "shop", "proxy": "exit"}},
}


@pytest.fixture
def api(served: Served) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=served.url, headers=served.headers) as client:
        put = client.put("/v1/fleet", json=FLEET)
        assert put.status_code == 200, put.text
        assert put.json()["applied"] is True
        yield client


def submit(api: httpx2.Client, **job: Any) -> dict[str, Any]:
    answer = api.post("/v1/jobs", json={"task": "sync_orders", "profile_id": "store_us_018", **job})
    assert answer.status_code == 201, answer.text
    job_: dict[str, Any] = answer.json()["items"][0]["job"]
    return job_


def test_curl_as_the_docs_have_it(served: Served, api: httpx2.Client) -> None:
    curl = shutil.which("curl")
    assert curl is not None
    common = [curl, "-s", "-H", f"Authorization: Bearer {served.token}"]
    job = '{"task":"sync_orders","account_id":"shop"}'
    done = subprocess.run([*common, f"{served.url}/v1/jobs", "-d", job], capture_output=True, check=True)
    assert json.loads(done.stdout)["items"][0]["job"]["task"] == "sync_orders"
    asked = subprocess.run([*common, f"{served.url}/v1/profiles/store_us_018/why"], capture_output=True, check=True)
    assert json.loads(asked.stdout)["profile"]["profile_id"] == "store_us_018"


def test_the_idempotency_key_gives_the_first_job_back(api: httpx2.Client) -> None:
    job = {"task": "sync_orders", "account_id": "shop"}
    first = api.post("/v1/jobs", json=job, headers={"Idempotency-Key": "k1"})
    again = api.post("/v1/jobs", json=job, headers={"Idempotency-Key": "k1"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["items"][0]["job"]["job_id"] == again.json()["items"][0]["job"]["job_id"]
    other = api.post("/v1/jobs", json={**job, "priority": 3}, headers={"Idempotency-Key": "k1"})
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_KEY_REUSED")


def test_a_list_is_paged_by_key_and_filtered_as_the_command_line_does(api: httpx2.Client) -> None:
    ids = [submit(api)["job_id"] for _ in range(5)]
    found, after = [], None
    while True:
        query: dict[str, str | int] = {"limit": 2, "task": "sync_orders", **({"after": after} if after else {})}
        page = api.get("/v1/jobs", params=query).json()
        found += [job["job_id"] for job in page["items"]]
        after = page["after"]
        if after is None:
            break
    assert found == ids[::-1]
    assert api.get("/v1/jobs", params={"state": "dead"}).json()["items"] == []
    wrong = api.get("/v1/jobs", params={"state": "nonsense", "color": "red"})
    assert wrong.status_code == 400
    assert {problem["where"] for problem in wrong.json()["problems"]} == {"state", "color"}


def test_a_decision_is_version_checked(api: httpx2.Client) -> None:
    job_id = submit(api)["job_id"]
    shown = api.get(f"/v1/jobs/{job_id}")
    tag = shown.headers["etag"]
    stale = api.post(f"/v1/jobs/{job_id}/cancel", json={"note": "not needed"}, headers={"If-Match": '"99"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "VERSION_CHANGED")
    done = api.post(f"/v1/jobs/{job_id}/cancel", json={"note": "not needed"}, headers={"If-Match": tag})
    assert (done.status_code, done.json()["state"]) == (200, "cancelled")
    (event,) = api.get("/v1/events", params={"job_id": job_id, "type": "job_decided"}).json()["items"]
    assert event["actor"].startswith("tests (")
    assert api.post(f"/v1/jobs/{job_id}/cancel", json={"note": " "}).status_code == 400
    assert api.post("/v1/jobs/nothing/cancel", json={"note": "x"}).status_code == 404


def test_a_pause_has_an_end_and_is_listed(api: httpx2.Client) -> None:
    ends = "2036-01-31T09:30:00Z"
    path = "/v1/pauses/account:shop"
    assert api.post(f"{path}/pause", json={"note": "on leave", "until": ends}).status_code == 200
    (listed,) = api.get("/v1/pauses").json()["items"]
    assert (listed["pause_id"], listed["note"], listed["until"]) == (
        "account:shop",
        "on leave",
        "2036-01-31T09:30:00.000000Z",
    )
    assert api.get(path).json() == listed
    # An end is of a pause alone: elsewhere it would be accepted and mean nothing.
    wrong = api.post("/v1/accounts/shop/pause", json={"note": "on leave", "until": ends})
    assert (wrong.status_code, wrong.json()["problems"][0]["where"]) == (400, "until")
    assert api.post(f"{path}/resume", json={"note": "back"}).status_code == 200
    assert api.get("/v1/pauses").json()["items"] == []


def test_conflicts_are_counted_by_profile_and_by_tasks(served: Served, api: httpx2.Client) -> None:
    request = {"profile_id": "store_us_018", "worker_id": "w", "incarnation": "w1", "purpose": "api"}
    call = {"version": 1, "arguments": {"request": request}}
    statuses = [api.post("/v1/store/acquire", json=call).status_code for _ in range(3)]
    assert statuses == [200, 409, 409]
    report = api.get("/v1/conflicts/report", params={"top": 1}).json()
    assert (report["events"], report["complete"]) == (2, True)
    (profile,), (pair,) = report["profiles"], report["pairs"]
    assert (profile["profile_id"], profile["count"]) == ("store_us_018", 2)
    assert sum(profile["causes"].values()) == 2
    assert (pair["blocked_task"], pair["current_task"]) == ("(no job)", "(no job)")
    assert api.get("/v1/conflicts/report", params={"top": 0}).status_code == 400


def test_every_kind_that_can_be_listed_has_a_path() -> None:
    assert {*NOUNS.values(), *(kind for kind, _, _ in VIEWS.values())} == set(LISTS)


def test_a_note_is_written_and_listed(api: httpx2.Client) -> None:
    (lane, *_) = api.get("/v1/profiles").json()["items"]
    done = api.post(f"/v1/profiles/{lane['profile_id']}/note", json={"note": "asks for a code"})
    assert (done.status_code, done.json()) == (200, {"state": lane["state"], "version": lane["version"]})
    assert api.post(f"/v1/accounts/{lane['account_id']}/note", json={"note": "on leave"}).status_code == 200
    items = api.get("/v1/notes", params={"account_id": lane["account_id"]}).json()["items"]
    assert [note["text"] for note in items] == ["on leave", "asks for a code"]
    assert items[1]["author"].startswith("tests (")
    assert api.get(f"/v1/notes/{items[0]['note_id']}").json() == items[0]
    assert [note["text"] for note in api.get(f"/v1/profiles/{lane['profile_id']}/why").json()["notes"]] == [
        "on leave",
        "asks for a code",
    ]
    assert api.post("/v1/profiles/nothing/note", json={"note": "x"}).status_code == 404


def test_the_fleet_is_read_compared_and_applied(api: httpx2.Client) -> None:
    more = {**FLEET, "accounts": {"shop": {}, "new": {}}}
    dry = api.put("/v1/fleet", params={"dry_run": 1}, json=more).json()
    assert (dry["applied"], len(dry["items"])) == (False, 1)
    assert "new" not in api.get("/v1/fleet").json()["accounts"]
    assert api.put("/v1/fleet", json=more).json()["applied"] is True
    assert "new" in api.get("/v1/fleet").json()["accounts"]


def test_a_fleet_that_somebody_else_changed_is_not_overwritten(api: httpx2.Client) -> None:
    seen = {"If-Match": api.get("/v1/fleet").headers["etag"]}
    assert api.post("/v1/accounts/shop/pause", json={"note": "on leave"}).status_code == 200
    more = {**FLEET, "accounts": {"shop": {}, "new": {}}}
    assert api.put("/v1/fleet", json=more, headers=seen).status_code == 200
    late = api.put("/v1/fleet", json=FLEET, params={"prune": 1}, headers=seen)
    assert (late.status_code, late.json()["code"]) == (412, "VERSION_CHANGED")
    assert "new" in api.get("/v1/fleet").json()["accounts"]


def test_the_fleet_names_its_profile_store_and_its_tag_covers_it(api: httpx2.Client) -> None:
    before = api.get("/v1/fleet").headers["etag"]
    assert api.put("/v1/fleet", json={**FLEET, "profile_store": "file:///var/profiles"}).status_code == 200
    read = api.get("/v1/fleet")
    assert read.json()["profile_store"] == "file:///var/profiles"
    late = api.put("/v1/fleet", json=FLEET, params={"prune": 1}, headers={"If-Match": before})
    assert (late.status_code, late.json()["code"]) == (412, "VERSION_CHANGED")
    now = {"If-Match": read.headers["etag"]}
    assert api.put("/v1/fleet", json=FLEET, params={"prune": 1}, headers=now).status_code == 200


def test_a_token_is_created_shown_once_and_revoked(served: Served, api: httpx2.Client) -> None:
    made = api.post("/v1/tokens", json={"name": "ci", "scopes": ["read"], "expires_after_seconds": 3600})
    assert made.status_code == 201
    text, token_id = made.json()["text"], made.json()["created"]["token_id"]
    me = httpx2.get(f"{served.url}/v1/whoami", headers={"Authorization": f"Bearer {text}"})
    assert me.json()["name"] == "ci"
    assert text not in api.get("/v1/tokens").text
    assert api.post(f"/v1/tokens/{token_id}/revoke", json={"note": "leaked"}).status_code == 200


def test_a_proxys_login_is_in_no_answer(api: httpx2.Client) -> None:
    assert api.get("/v1/proxies/exit").json()["credentials"] == "secret:exit_login"


def test_openapi_describes_every_route(api: httpx2.Client) -> None:
    document = api.get("/openapi.json").json()
    described = {(method.upper(), path) for path, row in document["paths"].items() for method in row}
    assert described == {(row.method, row.path) for row in ROUTES}
    assert "POST /v1/jobs" in api.get("/docs").text


# A stream of events does not end by itself, and /json/version is for the token of a session.
READ = [
    row
    for row in ROUTES
    if row.method == "GET"
    and not row.path.startswith("/json/")
    and "{" not in row.path
    and row.media == "application/json"
]


@pytest.mark.parametrize("row", READ, ids=lambda row: row.path)
def test_every_list_and_read_answers(api: httpx2.Client, row: Any) -> None:
    submit(api)
    assert api.get(row.path).status_code == 200


def test_what_is_no_json_is_said(api: httpx2.Client) -> None:
    for body in (b"{", b"\xff", b'{"task": NaN}', b'{"task": "a", "task": "b"}', b"[" * 100_000):
        answer = api.post("/v1/jobs", content=body)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_INPUT")
    assert api.post("/v1/jobs").json()["problems"][0]["where"] == "body"
