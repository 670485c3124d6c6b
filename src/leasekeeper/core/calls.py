"""The name of a call that may be repeated because its answer may be lost. What a store does with it: `Store.once`."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

# How long the answer to a call that may be repeated is kept, if no later call of its slot replaces it.
ANSWERS_KEPT: Final = timedelta(hours=1)
MAX_ANSWER_BYTES: Final = 1024**2
# A call that waits for work ends by itself before proxies on the way give up on it. A remote worker without work waits
# for so long at a time: it is the server that polls.
LONG_POLL: Final = timedelta(seconds=50)


class CallAttempt(StrEnum):
    """How often a call was sent. `ask`: it is not to be carried out any more, only its answer is wanted."""

    FIRST = "first"
    AGAIN = "again"
    ASK = "ask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The name of one call: the caller's `slot` and a number that grows with each call there, one after another.

    A higher number says that the answers to lower ones have arrived. `body` tells two calls apart that wrongly have the
    same name. With attempt FIRST the caller promises that it was not sent before.
    """

    slot: str
    sequence: int = 0
    body: str = ""
    attempt: CallAttempt = CallAttempt.AGAIN
