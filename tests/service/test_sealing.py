"""Secrets and endpoints over HTTP: sealed by the server, in no answer again, refused without a key."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from leasekeeper.config import SecretConfig
from leasekeeper.core.alerts import secret_of
from leasekeeper.encryption import new_key, read_keyring
from tests.serving import Served, ServerThread

KEY = new_key()


@pytest.fixture
def sealing(server: ServerThread, sqlite_url: str) -> Any:
    served = server.serve(sqlite_url, secret_key=KEY)
    yield served
    served.close()


def call(served: Served, method: str, path: str, body: Any = None, **query: str) -> httpx2.Response:
    given = {} if body is None else {"json": body}
    return httpx2.request(method, served.url + path, headers=served.headers, params=query, timeout=60, **given)


def test_a_secret_goes_in_and_does_not_come_out(sealing: Served, tmp_path: Path) -> None:
    stored = call(sealing, "PUT", "/v1/secrets/exit", {"value": "robot:canary-value"})
    assert (stored.status_code, stored.json()["version"]) == (200, 1)
    again = call(sealing, "PUT", "/v1/secrets/exit", {"value": "robot:canary-other"})
    assert again.json()["version"] == 2
    answers = [stored, again, call(sealing, "GET", "/v1/secrets"), call(sealing, "GET", "/v1/secrets/exit")]
    assert "canary" not in "".join(answer.text for answer in answers)
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"canary-" not in files
    (sealed,) = sealing.run(sealing.store.sealed_secrets(["exit"]))
    assert read_keyring(SecretConfig(keys=KEY)).open(sealed) == "robot:canary-other"
    assert call(sealing, "DELETE", "/v1/secrets/exit", note="no longer used").status_code == 204
    assert call(sealing, "DELETE", "/v1/secrets/exit", note="again").json()["code"] == "NOT_FOUND"


def test_an_endpoint_is_registered_with_a_secret_that_is_shown_once(sealing: Served) -> None:
    new = {"endpoint_id": "oncall", "url": "https://alerts.example.com/in", "events": ["profile.*"]}
    added = call(sealing, "POST", "/v1/endpoints", new)
    assert added.status_code == 201, added.text
    secret = added.json()["secret"]
    assert secret.startswith("whsec_")
    assert secret not in call(sealing, "GET", "/v1/endpoints/oncall").text
    (sealed,) = sealing.run(sealing.store.sealed_secrets([secret_of("oncall")]))
    assert read_keyring(SecretConfig(keys=KEY)).open(sealed) == secret
    own = call(sealing, "POST", "/v1/endpoints", {**new, "endpoint_id": "own", "secret": secret})
    assert (own.status_code, own.json()["secret"]) == (201, None)
    assert call(sealing, "DELETE", "/v1/secrets/webhook-own", note="by mistake").json()["code"] == "CONFLICT"


def test_wrong_values_are_refused_and_not_repeated(sealing: Served) -> None:
    new = {"endpoint_id": "oncall", "url": "https://alerts.example.com/in", "events": ["profile.*"]}
    wrong = call(sealing, "POST", "/v1/endpoints", {**new, "secret": "canary-no-secret"})
    assert wrong.status_code == 400
    lines = call(sealing, "PUT", "/v1/secrets/exit", {"value": "canary\nlines"})
    assert lines.status_code == 400
    unknown = call(sealing, "POST", "/v1/endpoints", {**new, "events": ["profile.quarantine"]})
    assert unknown.json()["problems"][0]["where"] == "events"
    assert "canary" not in wrong.text + lines.text


def test_a_server_without_a_key_says_so(served: Served) -> None:
    refused = call(served, "PUT", "/v1/secrets/exit", {"value": "robot:value"})
    assert (refused.status_code, refused.json()["code"]) == (400, "SECRET_KEY_MISSING")
