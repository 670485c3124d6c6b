"""Every route against every kind of token that must not pass, generated from the route table; and the guards."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx2
import pytest

from leasekeeper.core.tokens import Reach, Scope, token_text
from leasekeeper.service import guards
from leasekeeper.service.forwarded import as_called
from leasekeeper.service.guards import FailureCount
from leasekeeper.service.routes import ROUTES
from leasekeeper.service.routes.reference import document
from leasekeeper.service.routing import Route
from leasekeeper.stores import open_store
from tests.serving import Served, ServerThread

# One for all calls: a client loads certificates when it is made, which takes longer than a call.
CLIENT = httpx2.Client(verify=False, limits=httpx2.Limits(max_keepalive_connections=0))
GUARDED = [row for row in ROUTES if row.needs is not None]
FLEET = {"accounts": {"shop": {}, "other": {}}, "profiles": {"p1": {"account": "shop"}, "p2": {"account": "other"}}}


def name(row: Route) -> str:
    return f"{row.method} {row.path}"


def call(served: Served, row: Route, token: str | None, **more: Any) -> httpx2.Response:
    """The call with this token, on a record that need not be there."""
    path = row.path.replace("{id}", "p2")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    body: dict[str, Any] = {} if row.body is None else {"json": {}}
    return CLIENT.request(row.method, served.url + path, headers={**headers, **more}, **body)


@pytest.fixture(scope="session")
def shop(server: ServerThread, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One served store for all calls that are refused."""
    served = server.serve(f"sqlite:///{tmp_path_factory.mktemp('access')}/leasekeeper.db")
    applied = httpx2.put(f"{served.url}/v1/fleet", headers=served.headers, json=FLEET)
    assert applied.status_code == 200, applied.text
    yield served
    served.close()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_FAILURES", 1_000_000)


@pytest.fixture(scope="session")
def tokens(shop: Served) -> dict[str, str]:
    """Tokens of every kind."""
    made = {scope.value: shop.new_token(scope.value) for scope in Scope}
    made["expired"] = shop.new_token("admin", expires_after=timedelta(microseconds=1))
    made["restricted"] = shop.new_token("admin", accounts=["shop"])
    return made


@pytest.mark.parametrize("row", GUARDED, ids=name)
def test_no_route_is_open_without_a_valid_token(shop: Served, tokens: dict[str, str], row: Route) -> None:
    unknown = token_text("nobodynobody", bytes(32))
    for token in (None, "nonsense", unknown, tokens["read"][:-1], tokens["expired"]):
        answer = call(shop, row, token)
        assert answer.status_code == 401, (token, answer.text)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("row", GUARDED, ids=name)
def test_no_route_takes_a_token_without_its_scope(shop: Served, tokens: dict[str, str], row: Route) -> None:
    assert row.needs is not None
    for scope in Scope:
        if scope in (row.needs.scope, Scope.ADMIN, *row.also):
            continue
        answer = call(shop, row, tokens[scope.value])
        assert answer.status_code == 403, (scope, answer.text)
        assert answer.json()["code"] == "SCOPE_MISSING"


BODIES: dict[str, Any] = {
    "/v1/fleet": FLEET,
    "/v1/tokens": {"name": "x", "scopes": ["read"]},
    "/v1/endpoints": {"endpoint_id": "x", "url": "https://alerts.example.com/", "events": ["*"]},
    "/v1/secrets/{id}": {"value": "x"},
    "/v1/sessions": {"profile_id": "p2"},
    "/v1/sessions/{id}/checkpoint": {"step": "open"},
    "/v1/sessions/{id}/mutating": {"name": "order", "action": "enter"},
    "/v1/sessions/{id}/note": {"text": "two orders"},
    "/v1/sessions/{id}/request-human": {"message": "solve the prompt"},
}
# What these touch is in their body.
BY_BODY = [row for row in GUARDED if row.needs is not None and row.needs.reach is Reach.NOTHING]


@pytest.mark.parametrize("row", [row for row in GUARDED if row not in BY_BODY], ids=name)
def test_no_route_lets_a_token_of_another_account_in(shop: Served, tokens: dict[str, str], row: Route) -> None:
    """`p2` is a profile of the other account, or no record at all."""
    answer = call(shop, row, tokens["restricted"])
    if row.method == "GET":
        assert answer.status_code in (403, 404), answer.text
    else:
        # A lease or session that is not there is nobody's: 404 says nothing of another account.
        nobodys = "{lease_id}" in row.path or "/sessions/" in row.path
        expected = (400, 403, 404) if nobodys else (400, 403)
        assert answer.status_code in expected, answer.text
        if row.body is not None and answer.status_code == 400:
            body = BODIES.get(row.path, {"note": "why"})
            headers = {"Authorization": f"Bearer {tokens['restricted']}"}
            path = row.path.replace("{id}", "p2")
            again = httpx2.request(row.method, shop.url + path, headers=headers, json=body)
            assert again.status_code == (404 if nobodys else 403), again.text


STORE = [row for row in BY_BODY if row.path.startswith("/v1/store/")]
# These say nothing of any account: whether the store answers, and what the caller itself left unresolved.
OF_NO_ACCOUNT = {"/v1/store/check", "/v1/store/unresolved"}
SCHEMAS = document()["components"]["schemas"]


def example(schema: dict[str, Any], ids: dict[str, str], name: str = "") -> Any:
    """The smallest value that a schema allows, with these ids wherever it may have one."""
    if "$ref" in schema:
        return example(SCHEMAS[schema["$ref"].rpartition("/")[2]], ids, name)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if "anyOf" in schema:
        return example(schema["anyOf"][0], ids, name)
    match schema.get("type"):
        case "object":
            wanted = {*schema.get("required", ()), *ids}
            given = {each: value for each, value in schema.get("properties", {}).items() if each in wanted}
            return {each: example(value, ids, each) for each, value in given.items()}
        case "array":
            return [example(schema.get("items", {}), ids, name)]
        case "string":
            moment = "2031-01-01T00:00:00Z" if schema.get("format") == "date-time" else "x" * schema.get("minLength", 1)
            return ids.get(name, moment)
        case "boolean":
            return False
        case "integer" | "number":
            return schema.get("minimum", 1)
        case _:
            return None


def body_of(row: Route) -> dict[str, Any]:
    posted = document()["paths"][row.path][row.method.lower()]["requestBody"]
    schema: dict[str, Any] = posted["content"]["application/json"]["schema"]
    return schema


@pytest.fixture(scope="session")
def taken(shop: Served) -> dict[str, str]:
    """Ids of the other account: its profile, which is leased to somebody else, that lease and its run."""
    request = {"profile_id": "p2", "worker_id": "w", "incarnation": "w1", "purpose": "api"}
    call = {"version": 1, "arguments": {"request": request}}
    with pytest.MonkeyPatch.context() as patient:
        patient.setattr(guards, "MAX_FAILURES", 1_000_000)
        answer = httpx2.post(f"{shop.url}/v1/store/acquire", headers=shop.headers, json=call)
    assert answer.status_code == 200, answer.text
    lease = answer.json()["value"]["lease"]
    own = {name: lease[name] for name in ("lease_id", "run_id", "profile_id", "account_id")}
    return {**own, "lease_ids": lease["lease_id"], "id": "p2", "record_id": "p2"}


@pytest.mark.parametrize("row", STORE, ids=name)
def test_no_operation_touches_another_account(
    shop: Served, tokens: dict[str, str], taken: dict[str, str], row: Route
) -> None:
    """Every call of the store with a token of all scopes that is restricted to one account: about the other it gets
    nothing, and nothing is done."""
    body = example(body_of(row), taken)
    headers = {"Authorization": f"Bearer {tokens['restricted']}"}
    before = httpx2.get(f"{shop.url}/v1/events?limit=1", headers=shop.headers).json()
    answer = httpx2.post(shop.url + row.path, headers=headers, json=body)
    if row.path in OF_NO_ACCOUNT:
        assert answer.status_code == 200, answer.text
        assert row.path.endswith("check") or answer.json()["value"] == []
        return
    assert answer.status_code == 403, (body, answer.text)
    assert answer.json()["code"] in ("ACCOUNT_NOT_ALLOWED", "LEASE_OF_ANOTHER_TOKEN")
    assert httpx2.get(f"{shop.url}/v1/events?limit=1", headers=shop.headers).json() == before


def test_a_restricted_token_submits_for_its_own_account_alone(shop: Served, tokens: dict[str, str]) -> None:
    headers = {"Authorization": f"Bearer {tokens['restricted']}"}
    own = httpx2.post(f"{shop.url}/v1/jobs", headers=headers, json={"task": "visit", "account_id": "shop"})
    assert own.status_code == 201, own.text
    for job in ({"task": "visit", "account_id": "other"}, {"task": "visit", "profile_id": "p2"}):
        other = httpx2.post(f"{shop.url}/v1/jobs", headers=headers, json=job)
        assert other.status_code == 403, other.text
        assert other.json()["code"] == "ACCOUNT_NOT_ALLOWED"
    listed = httpx2.get(f"{shop.url}/v1/jobs?account_id=shop", headers=headers)
    assert listed.status_code == 200
    assert httpx2.get(f"{shop.url}/v1/jobs", headers=headers).status_code == 403


def test_another_host_and_another_site_are_refused(shop: Served) -> None:
    row = next(row for row in ROUTES if row.method == "POST" and row.path == "/v1/jobs")
    assert call(shop, row, shop.token, Host="evil.example").json()["code"] == "HOST_NOT_ALLOWED"
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = call(shop, row, shop.token, **headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "CROSS_SITE_REQUEST")
    same = call(shop, row, shop.token, **{"Sec-Fetch-Site": "same-origin"})
    assert same.json()["code"] == "INVALID_INPUT"


def test_too_many_headers_are_refused(shop: Served) -> None:
    headers = {f"X-{number}": "x" for number in range(guards.MAX_HEADERS)}
    answer = httpx2.get(f"{shop.url}/healthz", headers=headers)
    assert answer.json()["code"] == "REQUEST_REFUSED"


def test_every_answer_has_the_security_headers(shop: Served) -> None:
    for path in ("/healthz", "/docs", "/nowhere", "/v1/jobs"):
        headers = httpx2.get(shop.url + path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]


def test_whoever_fails_to_authenticate_too_often_has_to_wait(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_FAILURES", 3)
    url = f"{served.url}/v1/stats"
    codes = [httpx2.get(url, headers={"Authorization": "Bearer wrong"}).status_code for _ in range(5)]
    assert codes == [401, 401, 401, 429, 429]
    answer = httpx2.get(url, headers=served.headers)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert httpx2.get(f"{served.url}/healthz").status_code == 200


def test_a_known_token_is_not_kept_out_by_others_at_its_address(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All workers behind one router share an address."""
    monkeypatch.setattr(guards, "MAX_FAILURES", 3)
    url = f"{served.url}/v1/stats"
    known, new = (served.new_token("read") for _ in range(2))

    def status(token: str) -> int:
        return httpx2.get(url, headers={"Authorization": f"Bearer {token}"}).status_code

    assert status(known) == 200
    assert [status("wrong") for _ in range(4)] == [401, 401, 401, 429]
    assert (status(known), status(new), status(known[:-1] + "x")) == (200, 429, 429)
    (line,) = [record.getMessage() for record in caplog.records if record.name.endswith("guards")]
    assert "3 calls from 127.0.0.1 came with a wrong token" in line
    assert "lk_" not in line


async def test_a_store_whose_token_is_not_known_yet_waits(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_FAILURES", 1)
    monkeypatch.setattr(guards, "FAILURE_SECONDS", 0.5)
    wrong = {"Authorization": "Bearer wrong"}
    answer = await asyncio.to_thread(httpx2.get, f"{served.url}/v1/stats", headers=wrong)
    assert answer.status_code == 401
    store = await open_store(served.url, token=served.token)
    await store.close()


@pytest.mark.parametrize(
    ("peer", "behind_proxy", "headers", "expected"),
    [
        ("192.0.2.1", False, {"x-forwarded-for": "192.0.2.9", "x-forwarded-proto": "https"}, ("192.0.2.1", "http")),
        ("192.0.2.1", True, {"x-forwarded-for": "192.0.2.9", "x-forwarded-proto": "https"}, ("192.0.2.9", "https")),
        ("127.0.0.1", False, {"x-forwarded-for": "127.0.0.1, 192.0.2.9"}, ("192.0.2.9", "http")),
        ("127.0.0.1", False, {"x-forwarded-for": "nonsense", "x-forwarded-proto": "gopher"}, ("127.0.0.1", "http")),
        ("127.0.0.1", False, {}, ("127.0.0.1", "http")),
    ],
)
def test_only_a_proxy_says_who_calls(
    peer: str, behind_proxy: bool, headers: dict[str, str], expected: tuple[str, str]
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "scheme": "http", "client": (peer, 1234), "headers": raw}
    seen = as_called(scope, behind_proxy=behind_proxy)
    assert (seen["client"][0], seen["scheme"]) == expected


def test_calls_that_try_no_token_keep_nobody_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_FAILURES", 3)
    url = f"{served.url}/v1/stats"
    for _ in range(4):
        assert httpx2.get(url).status_code == 401
        # A page of another site, in a browser on the machine of the workers.
        page = httpx2.get(f"{served.url}/json/version?token=lks_x", headers={"Sec-Fetch-Site": "cross-site"})
        assert page.status_code == 401
    assert httpx2.get(url, headers=served.headers).status_code == 200


def test_failures_are_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_FAILURES", 20)
    now = [0.0]
    count = FailureCount(lambda: now[0])
    for _ in range(20):
        count.failed("192.0.2.1")
    assert count.wait_seconds("192.0.2.1") is not None
    assert count.wait_seconds("192.0.2.2") is None
    now[0] += guards.FAILURE_SECONDS
    assert count.wait_seconds("192.0.2.1") is None
