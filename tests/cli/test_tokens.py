"""`leasekeeper tokens`: created once with its text, listed without it, revoked with a note."""

import json
import re

from leasekeeper.core.tokens import OPERATIONS, token_id_of
from leasekeeper.ports import Store
from leasekeeper.service.auth import Authenticator
from tests.cli.workplace import Workplace

TEXT = re.compile(r"lk_[a-z0-9]{12}_[0-9A-Za-z]{49}")


def create(place: Workplace, *arguments: str) -> str:
    """The text of a new token."""
    return place.text("tokens", "create", *arguments).strip()


def test_an_empty_list_says_how_to_make_one(empty: Workplace) -> None:
    assert empty.text("tokens") == "no tokens: make one with 'leasekeeper tokens create NAME --scope read'\n"


def test_a_token_is_shown_once_and_works(empty: Workplace) -> None:
    made = empty.cli("tokens", "create", "ci", "--scope", "read")
    text = made.stdout.strip()
    assert TEXT.fullmatch(text)
    assert made.stderr == f"Token {token_id_of(text)} (ci) is created. Its text is not shown again.\n"

    async def who(store: Store) -> str:
        guard = Authenticator(store)
        name = (await guard.authorize(text, OPERATIONS["stats"])).name
        await guard.close()
        return name

    assert empty.do(who) == "ci"
    secret = text.split("_")[2]
    for answer in (empty.text("tokens"), json.dumps(empty.json("tokens")), empty.text("events")):
        assert secret not in answer
    (file,) = [path for path in empty.directory.iterdir() if path.name == "leasekeeper.db"]
    assert secret.encode() not in file.read_bytes()


def test_json_carries_the_text_and_the_record(empty: Workplace) -> None:
    made = empty.json(
        "tokens", "create", "w", "--scope", "work", "--scope", "read", "--pool", "eu", "--expires", "90d", "--by", "ann"
    )
    assert TEXT.fullmatch(made["token"])
    assert (made["name"], made["scopes"], made["pools"], made["created_by"]) == ("w", ["read", "work"], ["eu"], "ann")
    (item,) = empty.json("tokens")["items"]
    assert item["state"] == "active"
    assert {**item, "token": made["token"]} == {**made, "state": "active"}


def test_a_list_shows_scopes_restriction_and_state(empty: Workplace) -> None:
    gone = create(empty, "gone", "--scope", "admin")
    create(empty, "shop", "--scope", "submit", "--account", "a", "--account", "b", "--pool", "eu", "--expires", "12h")
    empty.text("tokens", "revoke", gone, "--note", "found in a log")
    header, first, second = empty.text("tokens").splitlines()
    assert header.split()[:5] == ["TOKEN", "NAME", "STATE", "SCOPES", "ONLY"]
    assert first.split()[1:4] == ["shop", "active", "submit"]
    assert "accounts a, b; pools eu" in first
    assert second.split()[1:4] == ["gone", "revoked", "admin"]
    assert [item["name"] for item in empty.json("tokens", "--name", "shop")["items"]] == ["shop"]


def test_revoking_needs_a_note_and_happens_once(empty: Workplace) -> None:
    text = create(empty, "ci", "--scope", "read")
    token_id = str(token_id_of(text))
    empty.fails(2, "tokens", "revoke", token_id)
    assert empty.text("tokens", "revoke", token_id, "--note", "old") == (
        f"token {token_id} is now revoked: calls with it are refused\n"
    )
    for again, code, why in ((token_id, 4, "is revoked already"), ("nobody", 3, "there is no token nobody")):
        refused = empty.cli("tokens", "revoke", again, "--note", "old")
        assert (refused.exit_code, why in refused.stderr) == (code, True)
    (event,) = empty.json("events", "--type", "token_revoked")["items"]
    assert event["data"]["note"] == "old"


def test_what_makes_no_sense_is_refused(empty: Workplace) -> None:
    for wrong in (
        ["ci"],
        ["ci", "--scope", "root"],
        ["", "--scope", "read"],
        ["ci", "--scope", "read", "--expires", "soon"],
        ["ci", "--scope", "read", "--expires", "0d"],
        ["ci", "--scope", "read", "--expires", "9999999999d"],
    ):
        empty.fails(2, "tokens", "create", *wrong)
    assert empty.json("tokens")["items"] == []
