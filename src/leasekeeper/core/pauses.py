"""Pauses: nothing new starts in the whole fleet, in one pool, for one account, or on one worker. Running work
continues.

Pure. A pause with an end is over at that time of the store's clock, also if no sweep has run since.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from leasekeeper.core.decisions import Action, Decision
from leasekeeper.errors import IllegalTransition, InputError, Problem

ALL: Final = "all"


class Scope(StrEnum):
    """What is paused."""

    ALL = "all"
    POOL = "pool"
    ACCOUNT = "account"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One pause. `pause_id` is `all`, or the scope and a name: `pool:eu`, `account:shop_us`, `worker:w1`.

    For an account that is paused without an end there is no such record: the account's own record says so.
    """

    pause_id: str
    scope: Scope
    name: str
    note: str
    actor: str
    since: datetime
    until: datetime | None = None


def pause_id_of(scope: Scope, name: str = "") -> str:
    """The id of a pause."""
    return ALL if scope is Scope.ALL else f"{scope}:{name}"


def scope_of(pause_id: str) -> tuple[Scope, str] | None:
    """The scope and the name in a pause's id; None if it is no such id. Ids hold no colon."""
    if pause_id == ALL:
        return Scope.ALL, ""
    scope, _, name = pause_id.partition(":")
    known = scope in (Scope.POOL, Scope.ACCOUNT, Scope.WORKER)
    return (Scope(scope), name) if known and name else None


def named_in(decision: Decision, now: datetime) -> tuple[Scope, str]:
    """The scope and the name of the pause that is decided about. Raises InputError for an invalid id, and for an
    `until` that is not in the future."""
    about = scope_of(decision.id)
    if about is None:
        raise InputError("nothing was paused", [Problem("id", "must be all, pool:NAME, account:ID or worker:NAME")])
    if decision.until is not None and decision.until <= now:
        raise InputError("nothing was paused", [Problem("until", "is not in the future, by the store's clock")])
    return about


def pause_decided(decision: Decision, scope: Scope, name: str, before: Pause | None, now: datetime) -> Pause | None:
    """The pause that is in force after a decision; None if there is none. Pausing again changes note and end.

    Raises IllegalTransition for a resume of what is not paused, except an account. An account's pause without an end
    needs no record here.
    """
    if decision.action is Action.RESUME:
        if scope is not Scope.ACCOUNT and (before is None or not is_active(before, now)):
            raise IllegalTransition(f"{decision.id} is not paused", state="active", allowed=(Action.PAUSE.value,))
        return None
    if scope is Scope.ACCOUNT and decision.until is None:
        return None
    return Pause(
        pause_id=decision.id,
        scope=scope,
        name=name,
        note=decision.note,
        actor=decision.actor,
        since=now,
        until=decision.until,
    )


def is_active(pause: Pause, now: datetime) -> bool:
    """Whether the pause is still in force."""
    return pause.until is None or pause.until > now


def bearing_on(pauses: Iterable[Pause], pool: str, now: datetime) -> tuple[Pause, ...]:
    """The pauses that keep the jobs of a pool from starting now, the one that ends last first."""
    found = [
        each for each in pauses if is_active(each, now) and (each.scope is Scope.ALL or each.pause_id == f"pool:{pool}")
    ]
    return tuple(sorted(found, key=lambda pause: (pause.until is not None, -(pause.until or pause.since).timestamp())))
