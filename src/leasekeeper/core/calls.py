"""The name of a call that may be repeated because its answer may be lost. What a store does with it: `Store.once`."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

# How long the answer to a call that may be repeated is kept, if no later call of its slot replaces it.
ANSWERS_KEPT: Final = timedelta(hours=1)
MAX_ANSWER_BYTES: Final = 1024**2
# The maximum duration of one call that waits for work: below the timeouts of usual HTTP proxies. A remote worker
# without work makes one such call after the other, and the server does the polling.
LONG_POLL: Final = timedelta(seconds=50)


class CallAttempt(StrEnum):
    """Whether a call was sent before. `ask`: do not carry the call out any more, only return its answer."""

    FIRST = "first"
    AGAIN = "again"
    ASK = "ask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The name of one call: the caller's `slot`, and a number that grows with each call in that slot.

    Calls of a slot are made one after another: a higher number says that the answers to lower ones have arrived. `body`
    tells two calls apart that wrongly have the same name. With attempt FIRST the caller promises that this call was not
    sent before.
    """

    slot: str
    sequence: int = 0
    body: str = ""
    attempt: CallAttempt = CallAttempt.AGAIN
