"""Keeps clients away from the browser's own pages (`chrome://extensions`, `chrome://inspect`, DevTools).

Scripts on such pages may change settings, load extensions or open a debugging port. A client may not open them, and may
not act in those that are open.
"""

_OWN = frozenset({"chrome", "chrome-untrusted", "devtools"})
# Pages of any other scheme are the browser's own, or cannot be shown.
_OPEN = frozenset({"http", "https", "data", "blob", "file", "javascript", "chrome-extension", "chrome-search"})
_HARMLESS = ("chrome://newtab", "chrome://new-tab-page", "chrome://new-tab-page-third-party")
_BLANK = ("about:blank", "about:srcdoc")
_PREFIXES = ("view-source:", "blob:", "filesystem:")
_SKIPPED = "".join(map(chr, range(33)))  # Chromium ignores these at both ends of an address
_REMOVED = dict.fromkeys(map(ord, "\t\n\r"))
# Commands allowed on the browser's own pages: they keep the client's state consistent, or show the page to a person.
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
    """The scheme (empty if there is none), and the address as Chromium reads it."""
    plain = address.strip(_SKIPPED).translate(_REMOVED).lower()
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    scheme, colon, _ = plain.partition(":")
    return (scheme if colon and not set(scheme) & set("/?#") else ""), plain


def may_open(address: object) -> bool:
    """Whether a client may open this address. True for what is not a string: the browser itself refuses that."""
    if not isinstance(address, str):
        return True
    scheme, plain = _split(address)
    return not scheme or scheme in _OPEN or plain.startswith(_BLANK) or plain.removesuffix("/") in _HARMLESS


def is_own_page(info: object) -> bool:
    """Whether a target (its `targetInfo`) shows one of the browser's own pages."""
    if not isinstance(info, dict):
        return False
    scheme, plain = _split(str(info.get("url", "")))
    return info.get("type") == "browser_ui" or (scheme in _OWN and plain.removesuffix("/") not in _HARMLESS)


def passes_there(method: str) -> bool:
    """Whether a client may send this command to one of the browser's own pages."""
    return method.startswith(_PASSES)
