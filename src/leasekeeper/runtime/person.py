"""Somebody who takes control of a browser: how their lease is named."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from leasekeeper.core.ids import WorkerId, is_id

PERSON: Final = "human:"
# A person who neither looks nor acts for so long has left.
IDLE: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody who takes control, and why."""

    name: str
    note: str = ""

    @property
    def worker_id(self) -> WorkerId:
        """What the lease is held as."""
        plain = "".join(letter if is_id(letter) else "_" for letter in self.name)[:100].strip("_") or "somebody"
        return WorkerId(f"{PERSON}{plain}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """How the run of a person ended who released a browser. `profile_state`: None if the lease was lost."""

    reason: str | None
    message: str
    profile_state: str | None


def own_part(incarnation: str) -> str:
    """An incarnation as its process named it: a server has put the id of the process's token before it."""
    return incarnation.rpartition("/")[2]


def incarnation_of(prefix: str) -> str:
    """A name that no other transfer has."""
    return f"{prefix}-{os.urandom(6).hex()}"
