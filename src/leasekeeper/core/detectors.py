"""Detectors: an address, an element or a text that means "logged out", "security prompt" or a project's own reason.

Pure: the caller reads the page and passes what it saw as `PageFacts`. A detector with several conditions
needs all of them; of several detectors the first registered wins.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from leasekeeper.errors import InputError, Problem

MAX_PATTERN: Final = 1_000
REASON_RULE: Final = "1 to 64 capitals, digits or '_', starting with a capital"
_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_ADDRESS = re.compile(r"[a-z*][a-z0-9+.*-]*:|\*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFacts:
    """What was seen on one page: its address, which of the asked selectors were visible, and its visible text."""

    url: str
    visible: frozenset[str] = frozenset()
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """One sign on a page and the reason it stands for.

    `url` is the whole address, with `*` for any characters: `*://shop.test/login*`. `selector` is what Playwright
    takes; `text` is searched for in the visible text, whatever its case and spacing.
    """

    reason: str
    url: str | None = None
    selector: str | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise InputError("the detector is not acceptable", problems)

    def matches(self, facts: PageFacts) -> bool:
        """Whether every condition of this detector holds on the page."""
        if self.url is not None and not url_matches(self.url, facts.url):
            return False
        if self.selector is not None and self.selector not in facts.visible:
            return False
        return self.text is None or _plain(self.text) in _plain(facts.text)


def _problems(detector: Detector) -> Iterable[Problem]:
    if not _REASON.fullmatch(detector.reason):
        yield Problem("reason", f"{detector.reason!r} must be {REASON_RULE}")
    conditions = {"url": detector.url, "selector": detector.selector, "text": detector.text}
    if all(value is None for value in conditions.values()):
        yield Problem("", "needs a url, a selector or a text to search for")
    for name, value in conditions.items():
        if value is not None and not 0 < len(value.strip()) <= MAX_PATTERN:
            yield Problem(name, f"must be 1 to {MAX_PATTERN} characters")
    if detector.url is not None and detector.url.strip("* ") == "":
        yield Problem("url", "would match every page; name a part of the address, as in *://shop.test/login*")
    elif detector.url is not None and not _ADDRESS.match(detector.url):
        yield Problem("url", f"must be a whole address; did you mean *://{detector.url.lstrip('/')}*?")


def url_matches(pattern: str, url: str) -> bool:
    """Whether the whole address fits the pattern. `*` is any run of characters, all else is itself."""
    if "*" not in pattern:
        return pattern == url
    first, *middle, last = pattern.split("*")
    if not url.startswith(first) or not url.endswith(last) or len(url) < len(first) + len(last):
        return False
    at, end = len(first), len(url) - len(last)
    for part in middle:
        at = url.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def selectors(detectors: Iterable[Detector]) -> frozenset[str]:
    """The selectors that must be counted before these detectors can judge a page."""
    return frozenset(detector.selector for detector in detectors if detector.selector is not None)


def first_match(detectors: Iterable[Detector], facts: PageFacts) -> Detector | None:
    """The first registered detector that fits the page, if any."""
    return next((detector for detector in detectors if detector.matches(facts)), None)
