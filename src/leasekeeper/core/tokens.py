"""API tokens: who may call what. Pure: time, ids and random secrets arrive as arguments.

A token's text is `lk_ID_SECRET`: the id finds its record, the secret proves it, and the last six characters are a
checksum, so that a scanner of leaked texts knows a real one. The store gets the hash of the text and never the text.
`OPERATIONS` and `DECISIONS` say which scope each call needs, and what it touches.
"""

import hashlib
import hmac
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from leasekeeper.core.alerts import Endpoint
from leasekeeper.core.decisions import BAN_ACTIONS, Action, Target
from leasekeeper.core.leases import Purpose
from leasekeeper.core.secrets import Secret
from leasekeeper.errors import (
    AccessDenied,
    AccountNotAllowed,
    IllegalTransition,
    InputError,
    LeaseOfAnotherToken,
    NotAuthenticated,
    PoolNotAllowed,
    Problem,
    ScopeMissing,
    TokenExpired,
    TokenRevoked,
)

PREFIX: Final = "lk_"
ID_LENGTH: Final = 12
SECRET_BYTES: Final = 32
MAX_NAME: Final = 128
MAX_RESTRICTIONS: Final = 1_000
MAX_LIFETIME: Final = timedelta(days=36_500)
USE_NOTED_EVERY: Final = timedelta(minutes=1)

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_LENGTH: Final = 43  # 32 bytes in base 62
_CHECKSUM_LENGTH: Final = 6
_TEXT: Final = re.compile(
    rf"{PREFIX}([a-z0-9]{{{ID_LENGTH}}})_([0-9A-Za-z]{{{_SECRET_LENGTH}}})([0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)


class Scope(StrEnum):
    """What a token allows. `admin` includes all others; none of the others includes another."""

    READ = "read"
    SUBMIT = "submit"
    WORK = "work"
    OPERATE = "operate"
    REVIEW = "review"
    ADMIN = "admin"


class Reach(StrEnum):
    """What a call touches. A token that is restricted to accounts or pools is checked against it.

    NOTHING: no account's data. TARGET: the account and the pool that it names. POOL: any account of the pool that it
    names. OWN_LEASES: leases that were granted to this very token. FLEET: everything.
    """

    NOTHING = "nothing"
    TARGET = "target"
    POOL = "pool"
    OWN_LEASES = "own_leases"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a call needs of a token."""

    scope: Scope
    reach: Reach = Reach.TARGET


# Every operation of the port, by name. `decide`, `get`, `find` and `acquire` need what DECISIONS, `to_read` and
# `to_acquire` say.
OPERATIONS: Final[Mapping[str, Needs]] = {
    "check": Needs(Scope.READ, Reach.NOTHING),
    "get": Needs(Scope.READ),
    "find": Needs(Scope.READ),
    "why": Needs(Scope.READ),
    "stats": Needs(Scope.READ, Reach.FLEET),
    "submit": Needs(Scope.SUBMIT),
    "claim": Needs(Scope.WORK, Reach.POOL),
    "wait": Needs(Scope.WORK, Reach.POOL),
    "report": Needs(Scope.WORK, Reach.POOL),
    "report_proxy": Needs(Scope.WORK, Reach.FLEET),
    "acquire": Needs(Scope.WORK),
    "free_profiles": Needs(Scope.READ, Reach.POOL),
    "renew": Needs(Scope.WORK, Reach.OWN_LEASES),
    "checkpoint": Needs(Scope.WORK, Reach.OWN_LEASES),
    "enter_section": Needs(Scope.WORK, Reach.OWN_LEASES),
    "leave_section": Needs(Scope.WORK, Reach.OWN_LEASES),
    "write_note": Needs(Scope.WORK, Reach.OWN_LEASES),
    "lease_secrets": Needs(Scope.WORK, Reach.OWN_LEASES),
    "reserve_call": Needs(Scope.WORK),
    "settle": Needs(Scope.WORK, Reach.OWN_LEASES),
    "hand_over": Needs(Scope.WORK, Reach.OWN_LEASES),
    "transfer": Needs(Scope.WORK, Reach.OWN_LEASES),
    "request_person": Needs(Scope.WORK, Reach.OWN_LEASES),
    "unresolved": Needs(Scope.WORK, Reach.OWN_LEASES),
    "reserve_launcher_checks": Needs(Scope.WORK, Reach.OWN_LEASES),
    "resolve": Needs(Scope.WORK, Reach.OWN_LEASES),
    "record": Needs(Scope.WORK, Reach.OWN_LEASES),
    "decide": Needs(Scope.OPERATE),
    "expire": Needs(Scope.OPERATE, Reach.FLEET),
    "pause_expiry": Needs(Scope.OPERATE, Reach.FLEET),
    "promote": Needs(Scope.OPERATE, Reach.FLEET),
    "fire": Needs(Scope.OPERATE, Reach.FLEET),
    "heal": Needs(Scope.OPERATE, Reach.FLEET),
    "forget_snapshots": Needs(Scope.OPERATE, Reach.FLEET),
    "prune": Needs(Scope.OPERATE, Reach.FLEET),
    "mark_silent": Needs(Scope.OPERATE, Reach.FLEET),
    "take_deliveries": Needs(Scope.OPERATE, Reach.FLEET),
    "settle_deliveries": Needs(Scope.OPERATE, Reach.FLEET),
    "apply": Needs(Scope.ADMIN, Reach.FLEET),
    "create_token": Needs(Scope.ADMIN, Reach.FLEET),
    "stored_token": Needs(Scope.ADMIN, Reach.FLEET),
    "note_token_uses": Needs(Scope.ADMIN, Reach.FLEET),
    "add_endpoint": Needs(Scope.ADMIN, Reach.FLEET),
    "put_secret": Needs(Scope.ADMIN, Reach.FLEET),
    "remove_secret": Needs(Scope.ADMIN, Reach.FLEET),
    "sealed_secrets": Needs(Scope.ADMIN, Reach.FLEET),
}

_OPERATE: Final = Needs(Scope.OPERATE)
_OPERATE_FLEET: Final = Needs(Scope.OPERATE, Reach.FLEET)
_REVIEW: Final = Needs(Scope.REVIEW)
_ADMIN: Final = Needs(Scope.ADMIN, Reach.FLEET)

# What each decision needs: `review` to judge what a run left behind, `operate` to run the fleet.
DECISIONS: Final[Mapping[tuple[Target, Action], Needs]] = {
    (Target.PROFILE, Action.CLEAR): _REVIEW,
    (Target.PROFILE, Action.QUARANTINE): _REVIEW,
    (Target.PROFILE, Action.REVIEW): _REVIEW,
    (Target.PROFILE, Action.DISABLE): _OPERATE,
    (Target.PROFILE, Action.ENABLE): _OPERATE,
    (Target.JOB, Action.APPROVE): _REVIEW,
    (Target.JOB, Action.REQUEUE): _REVIEW,
    (Target.JOB, Action.CANCEL): _OPERATE,
    (Target.JOB, Action.RETRY): _OPERATE,
    (Target.JOB, Action.DROP): _OPERATE,
    (Target.JOB, Action.PRIORITIZE): _OPERATE,
    (Target.ACCOUNT, Action.PAUSE): _OPERATE,
    (Target.ACCOUNT, Action.RESUME): _OPERATE,
    (Target.PROFILE, Action.MOVE): _REVIEW,
    (Target.PROFILE, Action.RESTORE): _REVIEW,
    (Target.PROFILE, Action.NOTE): _REVIEW,
    (Target.ACCOUNT, Action.NOTE): _REVIEW,
    **{(target, action): _REVIEW for target in (Target.ACCOUNT, Target.PROFILE) for action in BAN_ACTIONS},
    (Target.LEASE, Action.REVOKE): _OPERATE,
    (Target.LEASE, Action.ANSWER): _OPERATE,
    (Target.WEBHOOK, Action.REPLAY): _OPERATE,
    (Target.TOKEN, Action.REVOKE): _ADMIN,
    # A schedule may select any profile.
    (Target.SCHEDULE, Action.PAUSE): _OPERATE_FLEET,
    (Target.SCHEDULE, Action.RESUME): _OPERATE_FLEET,
    (Target.SCHEDULE, Action.RUN): _OPERATE_FLEET,
    (Target.PAUSE, Action.PAUSE): _OPERATE_FLEET,
    (Target.PAUSE, Action.RESUME): _OPERATE_FLEET,
    (Target.ENDPOINT, Action.ENABLE): _ADMIN,
    (Target.ENDPOINT, Action.DISABLE): _ADMIN,
    (Target.ENDPOINT, Action.PING): _OPERATE_FLEET,
    (Target.ENDPOINT, Action.REMOVE): _ADMIN,
    (Target.PROXY, Action.RETRY): _OPERATE_FLEET,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiToken:
    """One token as lists show it. Neither its text nor its hash is here. Empty `accounts` or `pools`: all of them."""

    token_id: str
    name: str
    scopes: tuple[Scope, ...]
    accounts: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    used_at: datetime | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token to be created. Its text is not here: only the program that made it has the text."""

    token_id: str
    name: str
    scopes: tuple[Scope, ...]
    accounts: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    expires_after: timedelta | None = None
    hash: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredToken:
    """A token with what proves it, and the store's time when it was read."""

    token: ApiToken
    hash: str = field(repr=False)
    now: datetime


def to_read(kind: type) -> Needs:
    """What reading records of this kind needs: scope `admin` for tokens, secrets and endpoints."""
    return _ADMIN if kind in (ApiToken, Secret, Endpoint) else OPERATIONS["find"]


def to_acquire(purpose: Purpose) -> Needs:
    """What a lease without a job needs: scope `review` to look inside a profile that waits for a
    person, else `work`."""
    return _REVIEW if purpose is Purpose.INSPECT else OPERATIONS["acquire"]


def token_text(token_id: str, secret: bytes) -> str:
    """The text of a token, from its id and its random secret."""
    body = f"{PREFIX}{token_id}_{_base62(int.from_bytes(secret), _SECRET_LENGTH)}"
    return body + _checksum(body)


def token_id_from(random: bytes) -> str:
    """An id of a token, from at least eight random bytes."""
    number, letters = int.from_bytes(random), "0123456789abcdefghijklmnopqrstuvwxyz"
    return "".join(letters[number // 36**place % 36] for place in range(ID_LENGTH))


def token_id_of(text: str) -> str | None:
    """The id in a token's text; None if it is no token's text: the checksum finds what was mistyped or cut off."""
    found = _TEXT.fullmatch(text)
    if found is None or _checksum(text[:-_CHECKSUM_LENGTH]) != found[3]:
        return None
    return found[1]


def hash_of(text: str) -> str:
    """What the store keeps of a token. One round of SHA-256 is enough for 256 random bits."""
    return hashlib.sha256(text.encode()).hexdigest()


def proves(text: str, kept: str) -> bool:
    """Whether `kept` is the hash of this text. The time that it takes does not depend on where the two differ."""
    return hmac.compare_digest(hash_of(text), kept)


def revoked(token: ApiToken, now: datetime) -> ApiToken:
    """The token, revoked. Raises IllegalTransition if it was revoked before."""
    if token.revoked_at is not None:
        raise IllegalTransition(f"token {token.token_id} is revoked already", state="revoked", allowed=())
    return replace(token, revoked_at=now)


def _base62(number: int, length: int) -> str:
    return "".join(_ALPHABET[number // 62**place % 62] for place in reversed(range(length)))


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), _CHECKSUM_LENGTH)


def check_new(token: NewToken) -> None:
    """Raise InputError with every fault of a token that is to be created."""
    problems = []
    if not token.name.strip() or len(token.name) > MAX_NAME or not token.name.isprintable():
        problems.append(Problem("name", f"must be 1 to {MAX_NAME} printable characters"))
    if not token.scopes:
        problems.append(Problem("scopes", f"must be at least one of: {', '.join(Scope)}"))
    for name, items in (("accounts", token.accounts), ("pools", token.pools)):
        if len(items) > MAX_RESTRICTIONS:
            problems.append(Problem(name, f"must be at most {MAX_RESTRICTIONS:,}"))
    if token.expires_after is not None and not timedelta(0) < token.expires_after <= MAX_LIFETIME:
        problems.append(Problem("expires_after", f"must be more than 0 s and at most {MAX_LIFETIME.days:,} days"))
    if problems:
        raise InputError("no token was created", problems)


def state_of(token: ApiToken, now: datetime) -> str:
    """`active`, `expired` or `revoked`."""
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= now else "active"


def invalid(token: ApiToken, now: datetime) -> NotAuthenticated | None:
    """Why a token proves nothing any more; None while it is active."""
    match state_of(token, now):
        case "revoked":
            return TokenRevoked(f"token {token.token_id} ({token.name}) was revoked", token_id=token.token_id)
        case "expired":
            return TokenExpired(f"token {token.token_id} ({token.name}) has expired", token_id=token.token_id)
        case _:
            return None


def has_scope(token: ApiToken, scope: Scope) -> bool:
    return scope in token.scopes or Scope.ADMIN in token.scopes


def denial(
    token: ApiToken,
    needs: Needs,
    *,
    account: str | None = None,
    pool: str | None = None,
    incarnation: str | None = None,
) -> AccessDenied | None:
    """Why a token does not allow a call; None if it does. `invalid` checks whether the token is still active.

    A restricted token may only make calls that name an account or pool of its own: a call that names none is about all.
    """
    who = f"token {token.token_id} ({token.name})"
    if not has_scope(token, needs.scope):
        return ScopeMissing(
            f"{who} has no scope {needs.scope}; it has: {', '.join(token.scopes)}",
            token_id=token.token_id,
            scope=needs.scope.value,
        )
    if needs.reach is Reach.NOTHING:
        return None
    if needs.reach is Reach.OWN_LEASES:
        return (
            None
            if holds(token, incarnation or "")
            else LeaseOfAnotherToken(f"{who} does not hold that lease", token_id=token.token_id)
        )
    if token.accounts and (account not in token.accounts or needs.reach in (Reach.FLEET, Reach.POOL)):
        return AccountNotAllowed(
            f"{who} is restricted to accounts {_some(token.accounts)}; {_named('account', account)}",
            token_id=token.token_id,
            account_id=account,
        )
    if token.pools and (pool not in token.pools or needs.reach is Reach.FLEET):
        return PoolNotAllowed(
            f"{who} is restricted to pools {_some(token.pools)}; {_named('pool', pool)}",
            token_id=token.token_id,
            pool=pool,
        )
    return None


def _named(what: str, name: str | None) -> str:
    return f"the call is not about one {what}" if name is None else f"the call is about {what} {name}"


def _some(names: tuple[str, ...], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def bound_incarnation(token: ApiToken, incarnation: str) -> str:
    """The incarnation that leases of a remote worker are granted to: it begins with the token's id.

    Every other part of a lease is shown in lists, and so does not prove who holds it.
    """
    return f"{token.token_id}/{incarnation}"


def holds(token: ApiToken, incarnation: str) -> bool:
    """Whether a lease that was granted to this incarnation belongs to the token."""
    return incarnation.startswith(f"{token.token_id}/")
