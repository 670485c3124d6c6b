"""`leasekeeper secrets`: values come in by stdin or a prompt, and never out again."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasekeeper.config import SecretConfig
from leasekeeper.encryption import new_key, read_keyring
from tests.cli.workplace import FLEET, Workplace, environment, in_terminal, program

CANARY = "user:canary-7f3a-hunter2"
OLD, NEW = new_key(), new_key()
WITH_SECRET = FLEET.replace("region: US}", "region: US, credentials: 'secret:us'}")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEKEEPER_SECRET_KEY", OLD)
    monkeypatch.delenv("LEASEKEEPER_SECRET_KEY_FILE", raising=False)


def key_id(text: str) -> str:
    return read_keyring(SecretConfig(keys=text)).current


def put(place: Workplace, name: str = "us", value: str = CANARY) -> None:
    place.text("secrets", "set", name, stdin=value + "\n")


def files_with(folder: Path, text: str) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.is_file() and text.encode() in path.read_bytes():
            yield path.name


def opened(place: Workplace, name: str, keys: str) -> str:
    (sealed,) = place.do(lambda store: store.sealed_secrets([name]))
    return read_keyring(SecretConfig(keys=keys)).open(sealed)


def test_an_empty_list_says_how_to_store_one(empty: Workplace) -> None:
    assert empty.text("secrets") == "no secrets: store one with 'leasekeeper secrets set NAME'\n"


def test_a_secret_is_stored_from_stdin_and_listed_without_its_value(empty: Workplace) -> None:
    said = empty.text("secrets", "set", "us", "--by", "ann", stdin=CANARY + "\n")
    assert said == f"secret us is stored (version 1, key {key_id(OLD)}); name it as secret:us\n"
    header, line = empty.text("secrets").splitlines()
    assert header.split() == ["SECRET", "KEY", "VERSION", "UPDATED", "BY", "CREATED"]
    assert line.split()[:2] == ["us", key_id(OLD)]
    (item,) = empty.json("secrets")["items"]
    assert sorted(item) == ["created_at", "key_id", "name", "updated_at", "updated_by", "version"]
    assert opened(empty, "us", OLD) == CANARY


def test_a_secret_can_be_typed_on_a_terminal_without_being_shown(empty: Workplace) -> None:
    code, screen = in_terminal(
        "secrets", "set", "us", url=empty.url, typed=f"{CANARY}\n", type_at="Value of us", LEASEKEEPER_SECRET_KEY=OLD
    )
    assert (code, "is stored" in screen, CANARY in screen) == (0, True, False)
    assert opened(empty, "us", OLD) == CANARY


def test_a_value_on_the_command_line_is_not_taken(empty: Workplace) -> None:
    assert empty.cli("secrets", "set", "us", CANARY).exit_code == 2
    assert empty.json("secrets")["items"] == []


@pytest.mark.parametrize("stdin", ["", "\n", "a\nb\n", "x" * 5_000])
def test_a_value_that_cannot_be_kept_is_refused(empty: Workplace, stdin: str) -> None:
    empty.fails(2, "secrets", "set", "us", stdin=stdin)
    assert empty.json("secrets")["items"] == []


def test_without_a_key_nothing_is_stored_and_the_error_has_a_code(
    empty: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEASEKEEPER_SECRET_KEY")
    empty.fails(2, "secrets", "set", "us", stdin=CANARY)
    refused = empty.cli("secrets", "set", "us", "--json", stdin=CANARY)
    assert json.loads(refused.stderr)["error"]["code"] == "SECRET_KEY_MISSING"


def test_secrets_are_encrypted_again_with_a_new_key(empty: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    put(empty, "us")
    put(empty, "eu", "user:other")
    monkeypatch.setenv("LEASEKEEPER_SECRET_KEY", f"{NEW} {OLD}")
    put(empty, "new", "user:newest")
    answer = empty.json("secrets", "rotate")
    assert answer == {"key_id": key_id(NEW), "rotated": ["eu", "us"], "failed": []}
    assert empty.text("secrets", "rotate") == f"0 secrets are encrypted with key {key_id(NEW)} now\n"
    assert {item["key_id"] for item in empty.json("secrets")["items"]} == {key_id(NEW)}
    assert empty.json("secrets", "--key", key_id(OLD))["items"] == []
    assert opened(empty, "us", NEW) == CANARY


def test_what_no_key_opens_is_reported_and_the_rest_is_rotated(
    empty: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, newest = new_key(), new_key()
    monkeypatch.setenv("LEASEKEEPER_SECRET_KEY", lost)
    put(empty, "a")
    monkeypatch.setenv("LEASEKEEPER_SECRET_KEY", OLD)
    put(empty, "b")
    monkeypatch.setenv("LEASEKEEPER_SECRET_KEY", f"{newest} {OLD}")
    refused = empty.cli("secrets", "rotate", "--json")
    answer = json.loads(refused.stdout)
    assert (refused.exit_code, answer["rotated"]) == (2, ["b"])
    assert [(each["name"], each["code"]) for each in answer["failed"]] == [("a", "SECRET_KEY_WRONG")]


def test_a_secret_in_use_is_not_removed(empty: Workplace) -> None:
    put(empty)
    empty.apply(WITH_SECRET)
    assert "us-1" in empty.fails(4, "secrets", "remove", "us", "--note", "tidy")
    empty.apply(FLEET)
    assert empty.text("secrets", "remove", "us", "--note", "tidy") == "secret us is removed\n"
    empty.fails(3, "secrets", "remove", "us", "--note", "tidy")


def test_a_new_key_is_made_and_kept_nowhere(empty: Workplace) -> None:
    made, other = empty.text("secrets", "key").strip(), empty.json("secrets", "key")["key"]
    assert key_id(made) != key_id(other)
    assert list(files_with(empty.directory, made)) == []


def test_neither_value_nor_key_is_in_the_store_or_on_a_command_line(empty: Workplace) -> None:
    setting = subprocess.Popen(
        [*program(), "secrets", "set", "us"],
        env=environment(empty.url, LEASEKEEPER_SECRET_KEY=OLD),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert setting.stdin is not None
    setting.stdin.write(CANARY)
    setting.stdin.flush()
    argv = Path(f"/proc/{setting.pid}/cmdline").read_bytes()
    said, _ = setting.communicate()
    assert setting.returncode == 0
    put(empty, "us", CANARY)
    empty.apply(WITH_SECRET)
    answers = [said, empty.text("events"), json.dumps(empty.json("events")), json.dumps(empty.json("secrets"))]
    for secret in (CANARY, CANARY.partition(":")[2], OLD, OLD[5:]):
        assert secret.encode() not in argv
        assert [answer for answer in answers if secret in answer] == []
        assert list(files_with(empty.directory, secret)) == []
