"""Tokens: their text, their hash, and every scope against every operation."""

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leasekeeper.core.accounts import Account, Limit, Proxy
from leasekeeper.core.decisions import ACTIONS
from leasekeeper.core.jobs import Job
from leasekeeper.core.secrets import Secret
from leasekeeper.core.tokens import (
    DECISIONS,
    OPERATIONS,
    ApiToken,
    Needs,
    NewToken,
    Reach,
    Scope,
    bound_incarnation,
    check_new,
    denial,
    hash_of,
    holds,
    invalid,
    proves,
    revoked,
    state_of,
    to_read,
    token_id_from,
    token_id_of,
    token_text,
)
from leasekeeper.errors import Forbidden, IllegalTransition, InputError, NotAuthenticated
from leasekeeper.ports import Store
from leasekeeper.wire.operations import LOCAL

NOW = datetime(2031, 1, 1, tzinfo=UTC)
TOKEN_ID = "abc123" * 2
SECRET = bytes(range(32))
ALL_NEEDS = sorted({*OPERATIONS.values(), *DECISIONS.values()}, key=lambda needs: (needs.scope, needs.reach))

# Which scope each operation needs, said a second time.
EXPECTED = """
read     free_profiles check get find why stats
submit   submit
work     claim wait report report_proxy acquire renew checkpoint enter_section leave_section lease_secrets settle
work     hand_over unresolved reserve_launcher_checks resolve record reserve_call write_note transfer request_person
operate  decide expire pause_expiry promote fire heal prune take_deliveries settle_deliveries mark_silent
operate  forget_snapshots
admin    add_endpoint apply create_token stored_token note_token_uses put_secret remove_secret sealed_secrets
"""
SCOPE_OF = {name: line.split()[0] for line in EXPECTED.strip().splitlines() for name in line.split()[1:]}

DECISION_SCOPES = """
review   profile.clear profile.quarantine profile.review job.approve job.requeue
review   profile.note account.note
review   profile.restore
review   profile.move profile.ban profile.suspect profile.unban account.ban account.suspect account.unban
operate  profile.disable profile.enable job.cancel job.retry job.drop job.prioritize
operate  account.pause account.resume lease.revoke lease.answer
operate  webhook.replay schedule.pause schedule.resume schedule.run endpoint.ping proxy.retry pause.pause pause.resume
admin    token.revoke endpoint.enable endpoint.disable endpoint.remove
"""
DECISION_SCOPE_OF = {
    name: line.split()[0] for line in DECISION_SCOPES.strip().splitlines() for name in line.split()[1:]
}


def token(*scopes: Scope, **fields: Any) -> ApiToken:
    return ApiToken(**{
        "token_id": TOKEN_ID, "name": "ci", "scopes": scopes, "created_at": NOW, "created_by": "ann", **fields,
    })  # fmt: skip


def code(held: ApiToken, needs: Needs, **about: Any) -> str | None:
    denied = denial(held, needs, **about)
    assert denied is None or isinstance(denied, Forbidden)
    return None if denied is None else denied.code


def operations() -> set[str]:
    return {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")} - LOCAL


def test_every_operation_of_the_port_has_its_row() -> None:
    assert set(OPERATIONS) == operations() == set(SCOPE_OF)


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("name", SCOPE_OF)
def test_every_scope_against_every_operation(name: str, scope: Scope) -> None:
    about = {"account": "a", "pool": "p", "incarnation": f"{TOKEN_ID}/i"}
    allowed = scope in (SCOPE_OF[name], Scope.ADMIN)
    assert code(token(scope), OPERATIONS[name], **about) == (None if allowed else "SCOPE_MISSING")


def test_every_decision_has_its_row() -> None:
    there = {f"{target}.{action}" for target, actions in ACTIONS.items() for action in actions}
    assert {f"{target}.{action}" for target, action in DECISIONS} == there == set(DECISION_SCOPE_OF)


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("key", DECISIONS, ids=lambda key: f"{key[0]}.{key[1]}")
def test_every_scope_against_every_decision(key: tuple[Any, Any], scope: Scope) -> None:
    allowed = scope in (DECISION_SCOPE_OF[f"{key[0]}.{key[1]}"], Scope.ADMIN)
    assert code(token(scope), DECISIONS[key]) == (None if allowed else "SCOPE_MISSING")


@pytest.mark.parametrize("kind", [Account, Job, Proxy, Limit, ApiToken, Secret])
def test_tokens_and_secrets_are_listed_by_an_admin_only(kind: type) -> None:
    assert to_read(kind).scope is (Scope.ADMIN if kind in (ApiToken, Secret) else Scope.READ)


@pytest.mark.parametrize("needs", ALL_NEEDS, ids=lambda needs: f"{needs.scope}-{needs.reach}")
def test_a_restricted_token_reaches_its_own_accounts_and_pools_only(needs: Needs) -> None:
    mine = {"account": "mine", "pool": "mine", "incarnation": f"{TOKEN_ID}/i"}
    free = (Reach.NOTHING, Reach.OWN_LEASES)
    for_accounts, for_pools = token(needs.scope, accounts=("mine",)), token(needs.scope, pools=("mine",))
    by_account = None if needs.reach in (*free, Reach.TARGET) else "ACCOUNT_NOT_ALLOWED"
    by_pool = None if needs.reach in (*free, Reach.TARGET, Reach.POOL) else "POOL_NOT_ALLOWED"
    assert (code(for_accounts, needs, **mine), code(for_pools, needs, **mine)) == (by_account, by_pool)
    for other in ("other", None):
        about = {**mine, "account": other, "pool": other}
        refused = needs.reach not in free
        assert code(for_accounts, needs, **about) == ("ACCOUNT_NOT_ALLOWED" if refused else None)
        assert code(for_pools, needs, **about) == ("POOL_NOT_ALLOWED" if refused else None)


def test_an_admin_that_is_restricted_is_restricted() -> None:
    held = token(Scope.ADMIN, accounts=("mine",))
    assert code(held, OPERATIONS["apply"], account="mine") == "ACCOUNT_NOT_ALLOWED"
    assert code(held, OPERATIONS["submit"], account="mine") is None


def test_a_worker_touches_its_own_leases_only() -> None:
    held, other = token(Scope.WORK), token(Scope.WORK, token_id=TOKEN_ID[:-1] + "x")
    incarnation = bound_incarnation(held, "i1")
    assert holds(held, incarnation)
    for name, needs in OPERATIONS.items():
        if needs.reach is Reach.OWN_LEASES:
            assert code(held, needs, incarnation=incarnation) is None, name
            assert code(other, needs, incarnation=incarnation) == "LEASE_OF_ANOTHER_TOKEN", name
            assert code(held, needs) == "LEASE_OF_ANOTHER_TOKEN", name
    assert not holds(held, TOKEN_ID + "x/i1")


@pytest.mark.parametrize(
    ("fields", "state", "refused"),
    [
        ({}, "active", None),
        ({"expires_at": NOW + timedelta(seconds=1)}, "active", None),
        ({"expires_at": NOW}, "expired", "TOKEN_EXPIRED"),
        ({"revoked_at": NOW}, "revoked", "TOKEN_REVOKED"),
        ({"revoked_at": NOW, "expires_at": NOW}, "revoked", "TOKEN_REVOKED"),
    ],
)
def test_a_token_proves_nothing_once_it_is_over(fields: dict[str, Any], state: str, refused: str | None) -> None:
    held = token(Scope.READ, **fields)
    wrong = invalid(held, NOW)
    assert (state_of(held, NOW), wrong and wrong.code) == (state, refused)
    assert wrong is None or isinstance(wrong, NotAuthenticated)


def test_a_text_carries_its_id_and_a_checksum() -> None:
    text = token_text(TOKEN_ID, SECRET)
    assert text.startswith(f"lk_{TOKEN_ID}_")
    assert len(text) == 3 + 12 + 1 + 43 + 6
    assert token_id_of(text) == TOKEN_ID
    assert text == token_text(TOKEN_ID, SECRET)


def test_what_was_mistyped_or_cut_off_is_no_token() -> None:
    text = token_text(TOKEN_ID, SECRET)
    swapped = [text[:n] + ("b" if text[n] != "b" else "c") + text[n + 1 :] for n in range(3, len(text))]
    wrong = [*swapped, text[:-1], text + "x", text.upper(), f" {text}", text + "\n", "", "lk_", "lk__", "ü" * 65]
    assert [each for each in wrong if token_id_of(each) is not None] == []


def test_the_largest_secret_fits() -> None:
    assert token_id_of(token_text(token_id_from(b"\xff" * 16), b"\xff" * 32)) is not None


def test_only_the_hashed_text_proves_a_token() -> None:
    text, other = token_text(TOKEN_ID, SECRET), token_text(TOKEN_ID, SECRET[::-1])
    assert proves(text, hash_of(text))
    assert not proves(other, hash_of(text))
    assert text not in hash_of(text)


def test_no_repr_shows_the_hash() -> None:
    assert "f00d" not in repr(NewToken(token_id=TOKEN_ID, name="ci", scopes=(Scope.READ,), hash="f00d"))


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"name": ""}, "name"),
        ({"name": " "}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 129}, "name"),
        ({"scopes": ()}, "scopes"),
        ({"accounts": ("a",) * 1_001}, "accounts"),
        ({"expires_after": timedelta(0)}, "expires_after"),
        ({"expires_after": timedelta(days=36_501)}, "expires_after"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(wrong: dict[str, Any], where: str) -> None:
    fields: dict[str, Any] = {"token_id": TOKEN_ID, "name": "ci", "scopes": (Scope.READ,), "hash": "x"}
    check_new(NewToken(**fields))
    with pytest.raises(InputError) as raised:
        check_new(NewToken(**{**fields, **wrong}))
    assert [problem.where for problem in raised.value.problems] == [where]


def test_a_token_is_revoked_once_and_for_good() -> None:
    before = token(Scope.READ)
    after = revoked(before, NOW + timedelta(hours=1))
    assert after == token(Scope.READ, revoked_at=NOW + timedelta(hours=1))
    with pytest.raises(IllegalTransition, match="revoked already") as refused:
        revoked(after, NOW + timedelta(hours=2))
    assert (refused.value.state, refused.value.allowed) == ("revoked", ())
