"""Compare what a page of a launcher's browser reports with what the profile declares. Pure.

A launcher sets language, time zone, proxy and engine itself: a declaration is only compared, never imposed.
"""

import re
from collections.abc import Mapping
from typing import Final

from leasekeeper.core.profiles import Profile

_CHROME: Final = re.compile(r"Chrome/(\d+(?:\.\d+)*)")


def browser_version(seen: Mapping[str, str]) -> str | None:
    """The version of the engine as the page's user agent names it; None if it names none."""
    found = _CHROME.search(seen.get("user_agent", ""))
    return found[1] if found else None


def engine_of(version: str | None) -> int | None:
    """The major version; None if the text is not the version of an engine."""
    major = (version or "").partition(".")[0]
    return int(major) or None if major.isdecimal() else None


def mismatch(profile: Profile, seen: Mapping[str, str], last_engine: int | None) -> str | None:
    """How the page differs from the profile, as a sentence; None if it does not, or nothing is declared.

    A value that the page did not report is no mismatch. `last_engine` is the browser version that opened the profile
    before: an older one may damage it.
    """
    for name, declared in (("language", profile.language), ("timezone", profile.timezone)):
        found = seen.get(name)
        if declared is not None and found is not None and found.casefold() != declared.casefold():
            return f"the page sees {name} {found}, profile {profile.profile_id} is declared with {declared}"
    engine = engine_of(browser_version(seen))
    if engine is not None and last_engine is not None and engine < last_engine:
        return (
            f"the page sees browser version {engine}, profile {profile.profile_id} was last opened by {last_engine}: "
            "an older one may damage it"
        )
    return None
