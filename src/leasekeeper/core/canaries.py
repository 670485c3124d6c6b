"""Login canaries: how the end of a run checks whether the profile is still logged in.

Pure: the program that has the browser makes the check. If the page cannot be opened, there is no answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from leasekeeper.core.accounts import Account
from leasekeeper.core.snapshots import Verdict
from leasekeeper.errors import InputError, Problem

MAX_TEXT: Final = 1_000
# Gets a page; returns whether it is logged in. `async def` for async tasks, plain `def` for the others.
CanaryFunction = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """How to check: a URL and a selector that its page shows only to a logged-in user, or a function."""

    url: str | None = None
    selector: str | None = None
    function: CanaryFunction | None = None

    def __post_init__(self) -> None:
        problems = []
        if (self.function is None) == (self.url is None):
            problems.append(Problem("", "needs a url and a selector, or a function"))
        if (self.url is None) != (self.selector is None):
            problems.append(Problem("selector", "a url needs a selector, and a selector a url"))
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            problems.append(Problem("url", "must be a whole address: https://shop.test/account"))
        problems += [
            Problem(name, f"must be 1 to {MAX_TEXT} characters")
            for name, value in (("url", self.url), ("selector", self.selector))
            if value is not None and not 0 < len(value.strip()) <= MAX_TEXT
        ]
        if problems:
            raise InputError("the canary is not acceptable", problems)


def as_canary(asked: Canary | CanaryFunction | None) -> Canary | None:
    """What an app registered, as a `Canary`: a plain function becomes a canary with that function."""
    return asked if asked is None or isinstance(asked, Canary) else Canary(function=asked)


def canary_of(account: Account) -> Canary | None:
    """The canary that the fleet file gives an account."""
    if account.canary_url is None or account.canary_selector is None:
        return None
    return Canary(url=account.canary_url, selector=account.canary_selector)


def verdict_of(answer: bool | None) -> Verdict:
    """The verdict for a canary's answer: True is logged in, False logged out, None (no answer) is NOT_ASKED."""
    if answer is None:
        return Verdict.NOT_ASKED
    return Verdict.LOGGED_IN if answer else Verdict.LOGGED_OUT
