"""Every exception of Leasekeeper, each with a stable code.

The code is for programs, the message for people: what happened, to what, and what to do next.

    LeasekeeperError
    ├── InputError              INVALID_INPUT: something in a request is wrong; nothing was written
    │   ├── UnknownAccount      UNKNOWN_ACCOUNT
    │   ├── UnknownProfile      UNKNOWN_PROFILE
    │   ├── AmbiguousProfile    AMBIGUOUS_PROFILE
    │   └── UnknownTask         UNKNOWN_TASK
    ├── NotFound                NOT_FOUND
    ├── Conflict                CONFLICT: the request met another state than it expected
    │   ├── IdempotencyConflict IDEMPOTENCY_KEY_REUSED
    │   ├── VersionConflict     VERSION_CHANGED
    │   ├── IllegalTransition   ILLEGAL_TRANSITION
    │   └── ProfileBusy         PROFILE_NOT_AVAILABLE
    ├── LeaseLost               STALE_WORKER_WRITE_REJECTED
    │   └── LeaseExpired        (the same: its time is up by the store's clock, and nobody has ended it yet)
    ├── PartlyDone              PARTLY_DONE: some of it happened, and then something stopped it
    ├── Fail                    RUN_FAILED: raised by your own code to end a run for a named reason
    └── StoreError              STORE_ERROR
        ├── StoreUnavailable    STORE_UNAVAILABLE
        ├── StoreNotWritable    STORE_NOT_WRITABLE
        ├── NetworkFileSystem   STORE_ON_NETWORK_FILE_SYSTEM
        ├── SchemaTooOld        SCHEMA_TOO_OLD
        └── SchemaTooNew        SCHEMA_TOO_NEW
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar


def told(something: object) -> str:
    """It as text, whatever its own way to tell that is worth."""
    try:
        return str(something)
    except Exception as error:  # noqa: BLE001 - other people's code
        return f"{type(something).__name__}, which could not be told ({type(error).__name__})"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """What somebody may have meant who wrote `name`, whatever its case; None if nothing is near."""
    from difflib import get_close_matches

    names = {each.casefold(): each for each in known}
    return next((names[near] for near in get_close_matches(name.casefold(), names, n=1, cutoff=cutoff)), None)


class LeasekeeperError(Exception):
    """The root: catch it to catch everything that Leasekeeper raises on purpose."""

    code: ClassVar[str] = "ERROR"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in an input: where it is (`jobs[3].priority`) and what is allowed there."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class InputError(LeasekeeperError):
    """The input is not acceptable. `problems` names every field at fault."""

    code = "INVALID_INPUT"

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        text = message if not problems else "\n".join([message, *(f"  {p}" for p in problems)])
        super().__init__(text)
        self.problems = tuple(problems)


class PartlyDone(LeasekeeperError):
    """Part of what was asked for was done. The message says how far it came, and what stopped it."""

    code = "PARTLY_DONE"


class UnknownAccount(InputError):
    """No such account in the store. Declare it in fleet.yaml and run `leasekeeper apply`."""

    code = "UNKNOWN_ACCOUNT"


class UnknownProfile(InputError):
    """No such profile in the store. Declare it in fleet.yaml and run `leasekeeper apply`."""

    code = "UNKNOWN_PROFILE"


class AmbiguousProfile(InputError):
    """The account has several profiles, and the job did not say which."""

    code = "AMBIGUOUS_PROFILE"


class UnknownTask(InputError):
    """Strict tasks are on, and no worker of the pool has ever offered this task."""

    code = "UNKNOWN_TASK"


class NotFound(LeasekeeperError):
    """The named record does not exist (or has been pruned)."""

    code = "NOT_FOUND"


class Conflict(LeasekeeperError):
    """The request was sound, but the record is in another state than it expected."""

    code = "CONFLICT"


class IdempotencyConflict(Conflict):
    """The idempotency key was used before for a different job."""

    code = "IDEMPOTENCY_KEY_REUSED"


class VersionConflict(Conflict):
    """Somebody changed the record since it was read. Read it again, then decide again."""

    code = "VERSION_CHANGED"


class IllegalTransition(Conflict):
    """The state machine has no such move from the present state."""

    code = "ILLEGAL_TRANSITION"


class ProfileBusy(Conflict):
    """The profile cannot be leased now. `reason` is the blocked reason, `message` names the holder."""

    code = "PROFILE_NOT_AVAILABLE"

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class LeaseLost(LeasekeeperError):
    """The lease is not live any more, so the write was refused and nothing changed. Stop acting on the profile."""

    code = "STALE_WORKER_WRITE_REJECTED"


class LeaseExpired(LeaseLost):
    """Its time is up by the store's clock, and nobody has ended it yet. If the holder's own time is not up, then the
    store's clock has leapt: it may try again."""


class Fail(LeasekeeperError):
    """Raise it inside a lease to say why the run stopped: `raise Fail("LOGIN_REQUIRED", "the shop shows its form")`."""

    code = "RUN_FAILED"

    def __init__(self, reason: str, message: object = "") -> None:
        detail = told(message) if message else ""
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = told(reason)
        self.detail = detail


class StoreError(LeasekeeperError):
    """The store could not do its work."""

    code = "STORE_ERROR"


class StoreUnavailable(StoreError):
    """The store cannot be reached, or gave up in the middle. What was acknowledged before is safe."""

    code = "STORE_UNAVAILABLE"


class StoreNotWritable(StoreError):
    """The store's file cannot be written: permissions, a read-only disk, or a full one."""

    code = "STORE_NOT_WRITABLE"


class NetworkFileSystem(StoreError):
    """SQLite's locks are not reliable on network file systems. Use a local disk, or PostgreSQL."""

    code = "STORE_ON_NETWORK_FILE_SYSTEM"


class SchemaTooOld(StoreError):
    """The store's schema is older than this program. Run `leasekeeper db migrate`."""

    code = "SCHEMA_TOO_OLD"


class SchemaTooNew(StoreError):
    """The store's schema is newer than this program. Upgrade Leasekeeper here before using it."""

    code = "SCHEMA_TOO_NEW"
