"""Flushes the pages' local storage to disk before their browser closes.

Chromium writes local storage up to five seconds late, in a process that ends with the browser. If that process is slow,
the last writes are lost even in a clean close. The storage of a closed page is written at once. So all pages are
closed, and then that process gets a request: its answer comes after the writes.
"""

from leasekeeper.browsers.keeper.capture import Cdp
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.pages import is_empty

FLUSH_SECONDS = 5.0
_AGAIN_SECONDS = 0.005
_UNUSED_ORIGIN = "https://flush.leasekeeper.invalid/"


def flush_storage(cdp: Cdp, until: float, *, visited: bool) -> bool:
    """Close all pages and wait until their storage is written. False if that was not confirmed in time.

    `visited`: a page was at an address that can store something. Otherwise nothing is requested, as the request itself
    changes the directory.
    """
    if not visited and all(map(is_empty, _pages(cdp, until).values())):
        return True
    # A browser without pages would end by itself, and the request needs a page to be sent from.
    made = cdp.ask("Target.createTarget", {"url": "about:blank", "background": True}, until=until)
    asker = str(made["targetId"]) if made else ""
    attached = cdp.ask("Target.attachToTarget", {"targetId": asker, "flatten": True}, until=until) if made else None
    if attached is None:
        return False
    closing: set[str] = set()
    while pages := _pages(cdp, until).keys() - {asker}:
        for page in pages - closing:
            cdp.send("Target.closeTarget", {"targetId": page})
        closing |= pages
        cdp.step(min(boot_time() + _AGAIN_SECONDS, until))
        if cdp.ended or boot_time() >= until:
            return False
    nothing: dict[str, object] = {"storageKey": _UNUSED_ORIGIN, "storageTypes": "local_storage"}
    return cdp.ask("Storage.clearDataForStorageKey", nothing, str(attached["sessionId"]), until) is not None


def _pages(cdp: Cdp, until: float) -> dict[str, str]:
    """The address of each page, by target id."""
    found = (cdp.ask("Target.getTargets", until=until) or {}).get("targetInfos")
    pages = [each for each in found if each.get("type") == "page"] if isinstance(found, list) else []
    return {str(each["targetId"]): str(each["url"]) for each in pages}
