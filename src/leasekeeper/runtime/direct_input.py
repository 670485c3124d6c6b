"""Reads the arguments of programs that lease without a job or write a note: durations, which profile they want,
whether their ending frees it, what the note is about."""

from collections.abc import Mapping
from datetime import timedelta

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.failures import handed_in
from leasekeeper.core.free_profiles import ProfileChoice
from leasekeeper.errors import InputError, Problem


def span_of(name: str, length: timedelta | float) -> timedelta:
    """The argument `name`, seconds or a timedelta, as a duration. Raises InputError if it is neither, or negative."""
    try:
        span = length if isinstance(length, timedelta) else timedelta(seconds=length)
    except (TypeError, ValueError, OverflowError):
        span = timedelta(-1)
    if span < timedelta(0):
        raise InputError("nothing was leased", [Problem(name, f"must be seconds or a timedelta, not {length!r}")])
    return span


def choice_of(profile: str | None, pool: str | None, labels: Mapping[str, str] | None) -> ProfileChoice | None:
    """The choice by pool and labels; None if one profile is named.

    Raises InputError unless there is either a profile, or a pool or labels.
    """
    anyone = pool is not None or labels is not None
    if (profile is None) != anyone:
        raise InputError("nothing was leased", [Problem("profile", "name one profile, or a pool or labels")])
    return ProfileChoice(pool=pool or "default", labels=dict(labels or {})) if anyone else None


def frees_profile(reason: str | None) -> bool:
    """Whether a run that ends for this reason may free its profile for the next run."""
    return reason is None or not handed_in(reason, {}).needs_person


def note_of(text: str, profile: str | None, account: str | None, actor: str) -> Decision:
    """The decision that writes a note on one profile or one account. Raises InputError unless exactly one is named."""
    if (profile is None) == (account is None):
        raise InputError("no note was written", [Problem("profile", "name one profile, or one account")])
    target = Target.ACCOUNT if profile is None else Target.PROFILE
    return Decision(target=target, id=profile or account or "", action=Action.NOTE, note=text, actor=actor)
