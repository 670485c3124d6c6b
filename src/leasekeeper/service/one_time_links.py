"""Links that sign in to the pages once, for the user who started the server on this machine. Valid for minutes."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

LINK_SECONDS: Final = 600.0
MAX_LINKS: Final = 100
ENTER: Final = "/ui/enter"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    token: str = field(repr=False)
    until: float


class OneTimeLinks:
    """The links of one process. In memory only."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._links: dict[str, _Link] = {}

    def make(self, url: str, token: str) -> str:
        """A link to the pages of the server at `url` that signs in with this token, once."""
        self._drop_old()
        while len(self._links) >= MAX_LINKS:
            self._links.pop(next(iter(self._links)))
        code = secrets.token_urlsafe(24)
        self._links[code] = _Link(token=token, until=self._now() + LINK_SECONDS)
        return f"{url}{ENTER}?code={quote(code)}"

    def take(self, code: str) -> str | None:
        """The token behind a link, the first time; None: the link was used, is too old, or never existed."""
        self._drop_old()
        link = self._links.pop(code, None)
        return link.token if link is not None else None

    def _drop_old(self) -> None:
        now = self._now()
        for code in [code for code, link in self._links.items() if link.until <= now]:
            del self._links[code]
