"""The ids that records are known by, as distinct types, and the form that every id and every number must have."""

import re
from typing import Final, NewType

AccountId = NewType("AccountId", str)
ProfileId = NewType("ProfileId", str)
LauncherId = NewType("LauncherId", str)
ProxyId = NewType("ProxyId", str)
JobId = NewType("JobId", str)
RunId = NewType("RunId", str)
LeaseId = NewType("LeaseId", str)
WorkerId = NewType("WorkerId", str)
ReviewId = NewType("ReviewId", str)
NoteId = NewType("NoteId", str)
ScheduleId = NewType("ScheduleId", str)
SnapshotId = NewType("SnapshotId", str)
Token = NewType("Token", int)

ID_PATTERN: Final = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
ID_RULE: Final = "1 to 128 letters, digits, '.', '_' or '-', not starting with '.'"
MAX_DIGITS: Final = 18
_ID = re.compile(ID_PATTERN)


def is_id(text: str) -> bool:
    """Whether `text` may name a record. Ids become file names, so they can hold no separator."""
    return _ID.fullmatch(text) is not None


def is_number(text: str) -> bool:
    """Whether the text is a number that every store can keep, as `seq` and tokens are."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
