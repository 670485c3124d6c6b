"""Every page, `/mcp` and every WebSocket against every kind of token that must not pass, made from their tables."""

from datetime import timedelta
from typing import Any

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from leasekeeper.core.tokens import Scope, token_text
from leasekeeper.runtime.session_offer import PATH as WORKERS
from leasekeeper.service import guards
from leasekeeper.service.live_socket import SOCKET
from leasekeeper.service.mcp import PATH as AGENTS
from leasekeeper.service.pages.signing_in import COOKIE
from leasekeeper.service.pages.table import TABLE, Row
from leasekeeper.service.session_socket import PATH as DEVTOOLS
from tests.serving import Served, ServerThread

CLIENT = httpx2.Client(verify=False, limits=httpx2.Limits(max_keepalive_connections=0))
FLEET = {"accounts": {"shop": {}, "other": {}}, "profiles": {"p1": {"account": "shop"}, "p2": {"account": "other"}}}
UNKNOWN = token_text("nobodynobody", bytes(32))
# What an admin's form would do, where no browser is needed. Others are sent with a note alone.
FORMS: dict[str, dict[str, str]] = {
    "/ui/queue/new": {"task": "visit", "profile_id": "p2"},
    "/ui/settings/tokens": {"name": "x", "scope": "admin"},
    "/ui/decide": {"target": "profile", "target_id": "p2", "action": "disable", "note": "x"},
    "/ui/decide-all": {"of": "jobs", "q": "", "action": "cancel", "note": "x"},
}


@pytest.fixture(scope="session")
def shop(server: ServerThread, tmp_path_factory: pytest.TempPathFactory) -> Any:
    served = server.serve(f"sqlite:///{tmp_path_factory.mktemp('pages')}/leasekeeper.db")
    assert httpx2.put(f"{served.url}/v1/fleet", headers=served.headers, json=FLEET).status_code == 200
    yield served
    served.close()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_FAILURES", 1_000_000)


@pytest.fixture(scope="session")
def tokens(shop: Served) -> dict[str, str]:
    made = {scope.value: shop.new_token(scope.value) for scope in Scope}
    made["expired"] = shop.new_token("admin", expires_after=timedelta(microseconds=1))
    made["restricted"] = shop.new_token("admin", accounts=["shop"])
    return made


@pytest.fixture(scope="session")
def other(shop: Served) -> dict[str, str]:
    """Records of the other account: its profile, a job and the run of a lease."""
    with pytest.MonkeyPatch.context() as patient:
        patient.setattr(guards, "MAX_FAILURES", 1_000_000)
        job = httpx2.post(f"{shop.url}/v1/jobs", headers=shop.headers, json={"task": "visit", "profile_id": "p2"})
        asked = {"profile_id": "p2", "worker_id": "w", "incarnation": "w1", "purpose": "api"}
        call = {"version": 1, "arguments": {"request": asked}}
        lease = httpx2.post(f"{shop.url}/v1/store/acquire", headers=shop.headers, json=call)
    return {
        "profile": "p2",
        "job": job.json()["items"][0]["job"]["job_id"],
        "run": lease.json()["value"]["lease"]["run_id"],
    }


def name(row: Row) -> str:
    return f"{row.method} {row.path}"


def visit(served: Served, row: Row, token: str | None, ids: dict[str, str] | None = None) -> httpx2.Response:
    """The page, or the form that it sends, for whoever has this token in the cookie."""
    known = ids or {"job": "nobody", "run": "nobody"}
    record = known["job"] if "/jobs/" in row.path else "p2"
    path = row.path.replace("{id}", record).replace("{run_id}", known["run"]).replace("{name}", "final.png")
    headers = {} if token is None else {"Cookie": f"{COOKIE}={token}"}
    if row.method == "GET":
        return CLIENT.get(served.url + path, headers=headers)
    form = FORMS.get(row.path, {"note": "x"})
    if row.path == "/ui/decide-all":
        jobs = CLIENT.get(f"{served.url}/v1/jobs?limit=1000", headers=served.headers).json()["items"]
        form = {**form, "count": str(sum(each["state"] != "cancelled" for each in jobs))}
    return CLIENT.post(served.url + path, headers=headers, data=form)


def events(served: Served) -> Any:
    return CLIENT.get(f"{served.url}/v1/events?limit=1", headers=served.headers).json()


@pytest.mark.parametrize("row", TABLE, ids=name)
def test_no_page_is_shown_without_a_valid_token(shop: Served, tokens: dict[str, str], row: Row) -> None:
    for token in (None, "nonsense", UNKNOWN, tokens["read"][:-1], tokens["expired"]):
        answer = visit(shop, row, token)
        assert answer.status_code == 303, (token, answer.text)
        assert "/ui/sign-in" in answer.headers["location"]


@pytest.mark.parametrize("row", TABLE, ids=name)
def test_no_page_is_shown_to_a_token_that_may_not_read(shop: Served, tokens: dict[str, str], row: Row) -> None:
    for scope in set(Scope) - {Scope.READ, Scope.ADMIN}:
        assert visit(shop, row, tokens[scope.value]).status_code == 403, scope


@pytest.mark.parametrize("row", [row for row in TABLE if row.method == "POST"], ids=name)
@pytest.mark.parametrize("who", ["read", "restricted"])
def test_no_form_does_anything_for_a_token_that_may_not(
    shop: Served, tokens: dict[str, str], other: dict[str, str], who: str, row: Row
) -> None:
    """One that may only read, and one of another account."""
    before = events(shop)
    answer = visit(shop, row, tokens[who], other)
    assert answer.status_code in (303, 400, 403, 404, 409, 410), answer.text
    assert events(shop) == before


def test_the_same_forms_do_something_for_an_admin(shop: Served, tokens: dict[str, str], other: dict[str, str]) -> None:
    for row in TABLE:
        if row.path in FORMS and row.method == "POST":
            before = events(shop)
            answer = visit(shop, row, tokens["admin"], other)
            assert events(shop) != before, (row.path, answer.text)


@pytest.mark.parametrize("row", [row for row in TABLE if row.method == "GET" and "{" in row.path], ids=name)
def test_no_page_of_a_record_is_shown_to_another_account(
    shop: Served, tokens: dict[str, str], other: dict[str, str], row: Row
) -> None:
    assert visit(shop, row, tokens["admin"], other).status_code in (200, 404, 410), "there is something to see"
    assert visit(shop, row, tokens["restricted"], other).status_code == 403


LISTS = [row for row in TABLE if row.method == "GET" and "{" not in row.path and row.path != "/ui/live"]


@pytest.mark.parametrize("row", LISTS, ids=name)
def test_no_list_shows_records_of_another_account(
    shop: Served, tokens: dict[str, str], other: dict[str, str], row: Row
) -> None:
    answer = visit(shop, row, tokens["restricted"], other)
    assert answer.status_code in (200, 403), answer.text
    assert not any(f">{each}<" in answer.text or f"/{each}" in answer.text for each in other.values())


def test_agents_need_a_valid_token(shop: Served, tokens: dict[str, str]) -> None:
    for token in (None, "nonsense", UNKNOWN, tokens["read"][:-1], tokens["expired"]):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        for method in ("GET", "POST", "DELETE"):
            assert CLIENT.request(method, shop.url + AGENTS, headers=headers).status_code == 401, (method, token)


def upgrade(served: Served, path: str, token: str | None) -> int:
    """What an upgrade is answered; the token comes in every way that there is."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}", "Cookie": f"{COOKIE}={token}"}
    address = served.url.replace("http", "ws", 1) + path.replace("{run_id}", "r1").replace("{id}", "r1")
    with pytest.raises(InvalidStatus) as refused, connect(address, additional_headers=headers):
        pass
    return refused.value.response.status_code


@pytest.mark.parametrize("path", [SOCKET, WORKERS, DEVTOOLS])
def test_no_socket_is_open_without_a_valid_token(shop: Served, tokens: dict[str, str], path: str) -> None:
    for token in (None, "nonsense", UNKNOWN, tokens["expired"]):
        assert upgrade(shop, path, token) in (401, 404), token


@pytest.mark.parametrize(("path", "scope"), [(SOCKET, "work"), (WORKERS, "read")])
def test_no_socket_is_open_to_a_token_without_its_scope(
    shop: Served, tokens: dict[str, str], path: str, scope: str
) -> None:
    assert upgrade(shop, path, tokens[scope]) == 403
