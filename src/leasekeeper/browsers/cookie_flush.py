"""Flushes cookies to disk without closing the browser.

Chromium writes cookies to disk up to half a minute late, unless many change at once. So this module sets many cookies
of a domain that cannot exist and removes them again: Chromium then writes all its cookies.
"""

from contextlib import suppress
from typing import Any, Final

ENOUGH: Final = 600
_DOMAIN: Final = "flush.leasekeeper.invalid"


def _cookies(*, gone: bool) -> dict[str, Any]:
    """`ENOUGH` cookies: to set them, or (`gone`, expired already) to remove them."""
    when = 1 if gone else 4_000_000_000
    return {
        "cookies": [
            {"name": f"f{number}", "value": "", "domain": _DOMAIN, "path": "/", "expires": when}
            for number in range(ENOUGH)
        ]
    }


async def flush_cookies(context: Any, page: Any) -> None:
    """Flush the cookies of an async context, through `page` or any other page: `page` may have been closed."""
    for each in (page, *context.pages):
        with suppress(Exception):
            await _flush(context, each)
            return
    own = await context.new_page()
    try:
        await _flush(context, own)
    finally:
        await own.close()


async def _flush(context: Any, page: Any) -> None:
    session = await context.new_cdp_session(page)
    try:
        await session.send("Storage.setCookies", _cookies(gone=False))
        await session.send("Storage.setCookies", _cookies(gone=True))
    finally:
        await session.detach()


def flush_cookies_sync(context: Any, page: Any) -> None:
    """As `flush_cookies`, for a context of the sync API."""
    for each in (page, *context.pages):
        with suppress(Exception):
            _flush_sync(context, each)
            return
    own = context.new_page()
    try:
        _flush_sync(context, own)
    finally:
        own.close()


def _flush_sync(context: Any, page: Any) -> None:
    session = context.new_cdp_session(page)
    try:
        session.send("Storage.setCookies", _cookies(gone=False))
        session.send("Storage.setCookies", _cookies(gone=True))
    finally:
        session.detach()
