"""Every exception of Leasekeeper, each with a stable code.

The code and the fields are for programs, the message is for people: what happened, to what, and what to do next.
Commands and links are not in messages: the command line and the pages add their own, by the code.

    LeasekeeperError
    ├── InputError              INVALID_INPUT: something in a request is wrong; nothing was written
    │   ├── UnknownAccount UNKNOWN_ACCOUNT · UnknownProfile UNKNOWN_PROFILE · UnknownTask UNKNOWN_TASK
    │   ├── AmbiguousProfile AMBIGUOUS_PROFILE · AmbiguousId AMBIGUOUS_ID · NoWebhookSecret WEBHOOK_SECRET_NEEDED
    │   ├── NoPlaywright NO_PLAYWRIGHT · BrowserNotFound BROWSER_NOT_FOUND
    │   └── SecretUnusable      SECRET_UNUSABLE: a stored secret cannot be used here
    │       └── SecretKeyMissing SECRET_KEY_MISSING · SecretKeyWrong SECRET_KEY_WRONG · SecretNotFound SECRET_NOT_FOUND
    ├── AccessDenied            ACCESS_DENIED: the caller's token does not allow it; nothing was done
    │   ├── NotAuthenticated    UNAUTHENTICATED, of that TokenExpired TOKEN_EXPIRED · TokenRevoked TOKEN_REVOKED
    │   └── Forbidden           FORBIDDEN
    │       ├── ScopeMissing SCOPE_MISSING · AccountNotAllowed ACCOUNT_NOT_ALLOWED
    │       └── PoolNotAllowed POOL_NOT_ALLOWED · LeaseOfAnotherToken LEASE_OF_ANOTHER_TOKEN
    ├── RequestRefused          REQUEST_REFUSED: the server did not take the HTTP request; nothing was done
    │   ├── MethodNotAllowed METHOD_NOT_ALLOWED · BodyTooLarge BODY_TOO_LARGE · HostNotAllowed HOST_NOT_ALLOWED
    │   └── CrossSiteRequest CROSS_SITE_REQUEST · TooManyRequests TOO_MANY_REQUESTS
    ├── NotFound NOT_FOUND · Fail RUN_FAILED · DemoFailed DEMO_FAILED · BrokerUnavailable BROKER_UNAVAILABLE
    ├── Conflict                CONFLICT: the request met another state than it expected
    │   ├── IdempotencyConflict IDEMPOTENCY_KEY_REUSED · VersionConflict VERSION_CHANGED
    │   └── IllegalTransition ILLEGAL_TRANSITION · ProfileBusy PROFILE_NOT_AVAILABLE · EventsGone EVENTS_GONE
    ├── LeaseLost           STALE_WORKER_WRITE_REJECTED, of that LeaseExpired LEASE_EXPIRED · SessionEnded SESSION_ENDED
    ├── PartlyDone PARTLY_DONE · EvidenceUnavailable EVIDENCE_UNAVAILABLE, of that EvidenceRefused EVIDENCE_REFUSED
    └── StoreError              STORE_ERROR
        ├── StoreUnavailable STORE_UNAVAILABLE, of that StoreMissing STORE_NOT_MADE
        ├── StoreNotWritable STORE_NOT_WRITABLE · NetworkFileSystem STORE_ON_NETWORK_FILE_SYSTEM
        └── StoreNotDurable STORE_NOT_DURABLE · SchemaTooOld SCHEMA_TOO_OLD · SchemaTooNew SCHEMA_TOO_NEW
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from inspect import get_annotations
from typing import ClassVar, Self

from leasekeeper.conflict_reasons import ConflictReason


def safe_str(something: object) -> str:
    """`str(something)`, or a placeholder if its `__str__` raises."""
    try:
        return str(something)
    except Exception as error:  # noqa: BLE001 - other people's code
        return f"{type(something).__name__}, whose __str__ raised ({type(error).__name__})"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most similar to `name`, ignoring case; None if none is similar."""
    from difflib import get_close_matches

    names = {each.casefold(): each for each in known}
    return next((names[near] for near in get_close_matches(name.casefold(), names, n=1, cutoff=cutoff)), None)


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in an input: where it is (`jobs[3].priority`) and what is allowed there."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def moved(self, name: str, by: int) -> "Problem":
        """The same problem for the whole list, in which this part begins at index `by`."""
        head, found, rest = self.where.partition("]")
        number = head.removeprefix(f"{name}[")
        if not found or number == head or not number.isdecimal():
            return self
        return Problem(f"{name}[{int(number) + by}]{rest}", self.message)


class LeasekeeperError(Exception):
    """The root of every exception here. `problems` names every field at fault. Fields that a class declares are keyword
    arguments: `LeaseLost(…, lease_id=…)`."""

    code: ClassVar[str] = "ERROR"

    def __init__(self, message: str, problems: Sequence[Problem] = (), **data: object) -> None:
        super().__init__(message)
        self.message = message
        self.problems = tuple(problems)
        if unknown := data.keys() - self.declared().keys():
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        for name, value in data.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {problem}" for problem in self.problems)])

    @classmethod
    def declared(cls) -> dict[str, object]:
        """The fields that this class has for programs, with their types."""
        found: dict[str, object] = {}
        for kind in reversed(cls.__mro__):
            found |= get_annotations(kind)
        return {name: hint for name, hint in found.items() if name != "code"}

    @property
    def data(self) -> dict[str, object]:
        """The fields that this error has a value for, by name."""
        return {name: value for name in self.declared() if (value := getattr(self, name, None)) is not None}

    @classmethod
    def restored(cls, message: str, problems: Sequence[Problem], data: dict[str, object]) -> Self:
        """The error, rebuilt from its parts as it was raised in another process."""
        error = cls.__new__(cls)
        LeasekeeperError.__init__(error, message, problems, **data)
        return error


def error_tree(kind: type[LeasekeeperError] = LeasekeeperError) -> Iterator[tuple[type[LeasekeeperError], int]]:
    """Every class of this module with its depth, parents first."""
    depth = len(kind.__mro__) - len(LeasekeeperError.__mro__)
    yield kind, depth
    for inner in kind.__subclasses__():
        if inner.__module__ == LeasekeeperError.__module__:
            yield from error_tree(inner)


class InputError(LeasekeeperError):
    """The input is invalid. `problems` names every field at fault."""

    code = "INVALID_INPUT"


class PartlyDone(LeasekeeperError):
    """The request was done in part. The message says how far it got, and what stopped it."""

    code = "PARTLY_DONE"
    done: int | None = None
    total: int | None = None
    stopped_by: str | None = None


class UnknownAccount(InputError):
    """No such account in the store. Declare it in the fleet file and apply that."""

    code = "UNKNOWN_ACCOUNT"
    account_id: str | None = None


class UnknownProfile(InputError):
    """No such profile of the account in the store. Declare it in the fleet file and apply that."""

    code = "UNKNOWN_PROFILE"
    account_id: str | None = None
    profile_id: str | None = None


class AmbiguousProfile(InputError):
    """The account has several profiles, and the job did not say which."""

    code = "AMBIGUOUS_PROFILE"
    account_id: str | None = None
    profile_ids: tuple[str, ...] | None = None


class AmbiguousId(InputError):
    """Several records have an id that begins with this text. Type more of it."""

    code = "AMBIGUOUS_ID"
    what: str | None = None
    id: str | None = None
    ids: tuple[str, ...] | None = None


class UnknownTask(InputError):
    """Strict tasks are on, and no worker of the pool has ever offered this task."""

    code = "UNKNOWN_TASK"
    task: str | None = None
    pool: str | None = None


class NoWebhookSecret(InputError):
    """Webhooks are pending, and no usable secret to sign them with is set here."""

    code = "WEBHOOK_SECRET_NEEDED"


class SecretUnusable(InputError):
    """A stored secret cannot be used here. The message names the secret, never its value."""

    code = "SECRET_UNUSABLE"
    secret: str | None = None
    key_id: str | None = None


class SecretKeyMissing(SecretUnusable):
    """No key is set here. Set LEASEKEEPER_SECRET_KEY or LEASEKEEPER_SECRET_KEY_FILE."""

    code = "SECRET_KEY_MISSING"


class SecretKeyWrong(SecretUnusable):
    """The secret was encrypted with a key that is not set here, or it was changed since."""

    code = "SECRET_KEY_WRONG"


class SecretNotFound(SecretUnusable):
    """A reference names a secret that is not in the store."""

    code = "SECRET_NOT_FOUND"


class NoPlaywright(InputError):
    """Playwright is not installed. Install the extra `browser` of Leasekeeper."""

    code = "NO_PLAYWRIGHT"


class BrowserNotFound(InputError):
    """There is no browser to use. The message says which places were searched and what to do."""

    code = "BROWSER_NOT_FOUND"


class AccessDenied(LeasekeeperError):
    """The caller's token does not allow the call. Nothing was done."""

    code = "ACCESS_DENIED"
    token_id: str | None = None


class NotAuthenticated(AccessDenied):
    """The call came without a token, or with one that is unknown, mistyped or wrong."""

    code = "UNAUTHENTICATED"


class TokenExpired(NotAuthenticated):
    """The token has expired. Create another."""

    code = "TOKEN_EXPIRED"


class TokenRevoked(NotAuthenticated):
    """A person revoked the token."""

    code = "TOKEN_REVOKED"


class Forbidden(AccessDenied):
    """The token is valid, and does not allow this call."""

    code = "FORBIDDEN"


class ScopeMissing(Forbidden):
    """The token does not have the scope that the call needs."""

    code = "SCOPE_MISSING"
    scope: str | None = None


class AccountNotAllowed(Forbidden):
    """The token is restricted to other accounts, or the call is about more than one."""

    code = "ACCOUNT_NOT_ALLOWED"
    account_id: str | None = None


class PoolNotAllowed(Forbidden):
    """The token is restricted to other pools, or the call is about more than one."""

    code = "POOL_NOT_ALLOWED"
    pool: str | None = None


class LeaseOfAnotherToken(Forbidden):
    """The lease was not granted to this token: a worker touches its own leases only."""

    code = "LEASE_OF_ANOTHER_TOKEN"


class RequestRefused(LeasekeeperError):
    """The server did not take the HTTP request: something about the request itself is wrong. Nothing was done."""

    code = "REQUEST_REFUSED"


class MethodNotAllowed(RequestRefused):
    """The path exists, and does not know this method. `allowed` names those that it knows."""

    code = "METHOD_NOT_ALLOWED"
    allowed: tuple[str, ...] | None = None


class BodyTooLarge(RequestRefused):
    """The request's body is larger than the server accepts. Send it in parts."""

    code = "BODY_TOO_LARGE"
    max_bytes: int | None = None


class HostNotAllowed(RequestRefused):
    """The request names a host that this server does not go by. Start the server with --allow-host."""

    code = "HOST_NOT_ALLOWED"


class CrossSiteRequest(RequestRefused):
    """A browser sent the request from a page of another site. Nothing was done."""

    code = "CROSS_SITE_REQUEST"


class TooManyRequests(RequestRefused):
    """Too many calls with a wrong token came from this address. Wait, then call with a valid one."""

    code = "TOO_MANY_REQUESTS"
    retry_after_seconds: int | None = None


class NotFound(LeasekeeperError):
    """The named record does not exist (or has been pruned). `what`: job, profile, run, lease …"""

    code = "NOT_FOUND"
    what: str | None = None
    id: str | None = None


class Conflict(LeasekeeperError):
    """The request was sound, but the record is in another state than it expected. `cause` says in which, `why` more."""

    code = "CONFLICT"
    cause: ConflictReason | None = None
    why: str | None = None
    profile_id: str | None = None
    profile_ids: tuple[str, ...] | None = None
    job_id: str | None = None
    run_id: str | None = None
    lease_id: str | None = None
    section: str | None = None
    until_at: datetime | None = None


class IdempotencyConflict(Conflict):
    """The idempotency key was used before for a different job, which is `job_id`."""

    code = "IDEMPOTENCY_KEY_REUSED"
    idempotency_key: str | None = None


class VersionConflict(Conflict):
    """Somebody changed the record since it was read. Read it again, then decide again."""

    code = "VERSION_CHANGED"
    version: int | None = None


class IllegalTransition(Conflict):
    """The record's present state does not allow this change. `allowed` names what a person may decide now."""

    code = "ILLEGAL_TRANSITION"
    state: str | None = None
    allowed: tuple[str, ...] | None = None


class ProfileBusy(Conflict):
    """The profile cannot be leased now. `reason` is the blocked reason, `holder` the worker that has it."""

    code = "PROFILE_NOT_AVAILABLE"
    reason: str = ""
    state: str | None = None
    account_id: str | None = None
    holder: str | None = None


class EventsGone(Conflict):
    """A stream of events cannot begin at the requested position. `position` is where it would begin now."""

    code = "EVENTS_GONE"
    position: str | None = None


class LeaseLost(LeasekeeperError):
    """The lease is not live any more, so the write was refused and nothing changed. Stop acting on the profile.

    `refusal` is why the store refused; None: the holder's own deadline passed first.
    """

    code = "STALE_WORKER_WRITE_REJECTED"
    refusal: str | None = None
    lease_id: str | None = None
    profile_id: str | None = None


class LeaseExpired(LeaseLost):
    """It expired by the store's clock. If the holder's deadline has not passed, that clock jumped: try again."""

    code = "LEASE_EXPIRED"


class SessionEnded(LeaseLost):
    """The session is over, and `reason` says why. Open another one."""

    code = "SESSION_ENDED"
    session_id: str | None = None
    reason: str | None = None


class DemoFailed(LeasekeeperError):
    """The demo failed. The message says why, and where the logs are."""

    code = "DEMO_FAILED"


class Fail(LeasekeeperError):
    """Raise it inside a lease to say why the run stopped: `raise Fail("LOGIN_REQUIRED", "the shop shows its form")`."""

    code = "RUN_FAILED"
    reason: str
    detail: str

    def __init__(self, reason: str, message: object = "") -> None:
        detail = safe_str(message) if message else ""
        super().__init__(f"{reason}: {detail}" if detail else reason, reason=safe_str(reason), detail=detail)


class EvidenceUnavailable(LeasekeeperError):
    """The place where evidence is kept cannot be reached, or did not answer in time. Try again later."""

    code = "EVIDENCE_UNAVAILABLE"
    location: str | None = None
    name: str | None = None


class EvidenceRefused(EvidenceUnavailable):
    """The place of evidence refused: wrong credentials, no bucket, other content. Check the setting `evidence`."""

    code = "EVIDENCE_REFUSED"


class BrokerUnavailable(LeasekeeperError):
    """The queue that a bridge takes messages from cannot be reached, or did not answer in time. Try again later."""

    code = "BROKER_UNAVAILABLE"


class StoreError(LeasekeeperError):
    """The store could not do its work."""

    code = "STORE_ERROR"


class StoreUnavailable(StoreError):
    """The store cannot be reached, or gave up in the middle. What was acknowledged before is safe."""

    code = "STORE_UNAVAILABLE"


class StoreMissing(StoreUnavailable):
    """The store was not made yet: there is no such file."""

    code = "STORE_NOT_MADE"
    location: str | None = None


class StoreNotWritable(StoreError):
    """The store's file cannot be written: permissions, a read-only disk, or a full one."""

    code = "STORE_NOT_WRITABLE"


class StoreNotDurable(StoreError):
    """The server could lose what it acknowledged. `wanted` are the settings that it needs, as name and value."""

    code = "STORE_NOT_DURABLE"
    wanted: tuple[str, ...] | None = None


class NetworkFileSystem(StoreError):
    """SQLite's locks are not reliable on network file systems. Use a local disk, or PostgreSQL."""

    code = "STORE_ON_NETWORK_FILE_SYSTEM"


class SchemaTooOld(StoreError):
    """The store's schema is older than this program. Migrate it."""

    code = "SCHEMA_TOO_OLD"
    schema: int | None = None
    newest_schema: int | None = None


class SchemaTooNew(StoreError):
    """The store's schema is newer than this program. Upgrade Leasekeeper here before using it."""

    code = "SCHEMA_TOO_NEW"
    schema: int | None = None
    newest_schema: int | None = None
