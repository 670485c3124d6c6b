"""The browser's own pages (`chrome://extensions`, `chrome://inspect`, DevTools): scripts on them may change settings,
load extensions or open a debugging port. Clients neither go there nor act in those that are open.
"""

_OWN = frozenset({"chrome", "chrome-untrusted", "devtools"})
# A page of anything else is the browser's own, or nothing that it can show.
_OPEN = frozenset({"http", "https", "data", "blob", "file", "javascript", "chrome-extension", "chrome-search"})
_HARMLESS = ("chrome://newtab", "chrome://new-tab-page", "chrome://new-tab-page-third-party")
_BLANK = ("about:blank", "about:srcdoc")
_PREFIXES = ("view-source:", "blob:", "filesystem:")
_SKIPPED = "".join(map(chr, range(33)))  # as the browser reads an address: left out at both ends
_REMOVED = dict.fromkeys(map(ord, "\t\n\r"))
# On a page of the browser's own: what keeps a client's view of it in order, or shows it to a person.
_PASSES = (
    "Emulation.",
    "Inspector.enable",
    "Log.enable",
    "Network.enable",
    "Page.captureScreenshot",
    "Page.close",
    "Page.enable",
    "Page.getFrameTree",
    "Page.getLayoutMetrics",
    "Page.screencastFrameAck",
    "Page.setLifecycleEventsEnabled",
    "Page.startScreencast",
    "Page.stopScreencast",
    "Runtime.enable",
    "Runtime.runIfWaitingForDebugger",
    "Target.",
)


def _split(address: str) -> tuple[str, str]:
    """The scheme, empty if there is none, and the address as the browser reads it."""
    plain = address.strip(_SKIPPED).translate(_REMOVED).lower()
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    scheme, colon, _ = plain.partition(":")
    return (scheme if colon and not set(scheme) & set("/?#") else ""), plain


def may_open(address: object) -> bool:
    """Whether a client may go to this address. What is no address is left to the browser, which refuses it."""
    if not isinstance(address, str):
        return True
    scheme, plain = _split(address)
    return not scheme or scheme in _OPEN or plain.startswith(_BLANK) or plain.removesuffix("/") in _HARMLESS


def is_own_page(info: object) -> bool:
    """Whether a target, as the browser describes it, shows a page of the browser's own."""
    if not isinstance(info, dict):
        return False
    scheme, plain = _split(str(info.get("url", "")))
    return info.get("type") == "browser_ui" or (scheme in _OWN and plain.removesuffix("/") not in _HARMLESS)


def passes_there(method: str) -> bool:
    """Whether a client may send this to a page of the browser's own."""
    return method.startswith(_PASSES)
