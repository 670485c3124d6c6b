"""Notes on accounts and profiles, by people and by runs. Pure: time and ids arrive as arguments.

A note changes no state. Only the newest notes of an account or profile are kept, those of people and those of runs
counted apart: a task that writes one in every run does not push out what a person wrote.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from leasekeeper.core.ids import AccountId, JobId, NoteId, ProfileId, RunId
from leasekeeper.errors import InputError, Problem

MAX_CHARACTERS: Final = 2_000
MAX_KEPT: Final = 100  # by people, and as many by runs, on one account or profile
MAX_SHOWN: Final = 5  # in an answer of `why`


class NoteAbout(StrEnum):
    """What a note is about."""

    PROFILE = "profile"
    ACCOUNT = "account"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One note. `run_id` is set if a run wrote it. A note about an account has no `profile_id`,
    unless a run wrote it."""

    note_id: NoteId
    about: NoteAbout
    account_id: AccountId
    profile_id: ProfileId | None = None
    job_id: JobId | None = None
    run_id: RunId | None = None
    author: str
    text: str
    written_at: datetime

    @property
    def subject(self) -> str:
        """The id of the account or profile that it is about."""
        return self.profile_id or "" if self.about is NoteAbout.PROFILE else self.account_id


def check_text(text: str) -> None:
    """Raise InputError unless this can be a note."""
    if not text.strip():
        raise InputError("no note was written", [Problem("note", "must not be empty")])
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            "no note was written", [Problem("note", f"has {len(text):,} characters; the maximum is {MAX_CHARACTERS:,}")]
        )


def shortened(text: str) -> str:
    """The text of a run's note, cut to the maximum: a note that is too long must not end a run."""
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
