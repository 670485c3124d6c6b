"""A person who takes control of a browser: the worker_id and the incarnation of their lease."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from leasekeeper.core.ids import WorkerId, is_id

PERSON: Final = "human:"
# A person who neither watches nor acts for this long counts as gone.
IDLE: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person who takes control, and why."""

    name: str
    note: str = ""

    @property
    def worker_id(self) -> WorkerId:
        """The worker_id of the person's lease."""
        plain = "".join(letter if is_id(letter) else "_" for letter in self.name)[:100].strip("_") or "somebody"
        return WorkerId(f"{PERSON}{plain}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """How a person's run ended when they released the browser. `profile_state`: None if the lease was lost."""

    reason: str | None
    message: str
    profile_state: str | None


def own_part(incarnation: str) -> str:
    """The incarnation as its process named it, without the token id that a server puts before it."""
    return incarnation.rpartition("/")[2]


def incarnation_of(prefix: str) -> str:
    """A new, unique incarnation for one transfer."""
    return f"{prefix}-{os.urandom(6).hex()}"
