"""What pages stored, made durable before their browser closes.

Chromium writes local storage up to five seconds late, in a process of its own that ends with the browser. If that
process is slow just then, what was stored last is lost, though the browser closed well. The storage of a page that is
gone is written at once, and a question to that process is answered after the write.
"""

from leasekeeper.browsers.keeper.capture import Cdp
from leasekeeper.browsers.keeper.clock import boot_time
from leasekeeper.browsers.keeper.pages import is_empty

FLUSH_SECONDS = 5.0
_AGAIN_SECONDS = 0.005
_NOBODY = "https://flush.leasekeeper.invalid/"


def flush_storage(cdp: Cdp, until: float, *, visited: bool) -> bool:
    """Close every page and wait until what they stored is written. False if that could not be seen in time.

    `visited`: some page was somewhere. Else nothing is asked, as the question itself changes the directory.
    """
    if not visited and all(map(is_empty, _pages(cdp, until).values())):
        return True
    # A browser without any page would end by itself, and the question needs one to be asked from.
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
    nothing: dict[str, object] = {"storageKey": _NOBODY, "storageTypes": "local_storage"}
    return cdp.ask("Storage.clearDataForStorageKey", nothing, str(attached["sessionId"]), until) is not None


def _pages(cdp: Cdp, until: float) -> dict[str, str]:
    """The address of each page."""
    found = (cdp.ask("Target.getTargets", until=until) or {}).get("targetInfos")
    pages = [each for each in found if each.get("type") == "page"] if isinstance(found, list) else []
    return {str(each["targetId"]): str(each["url"]) for each in pages}
