"""Chromium's feature switches. Of several `--disable-features` it obeys only the last, so they become one.

A browser without a window loads the popup of its address bar all the same: a renderer that nobody sees, and half of
the processor time of a launch.
"""

_DISABLED, _ENABLED = "--disable-features=", "--enable-features="
_UNSEEN = "WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup"


def merge_features(arguments: list[str]) -> list[str]:
    """The same command line with each kind of feature switch once, first."""
    disabled, enabled = _values(arguments, _DISABLED), _values(arguments, _ENABLED)
    if any(argument == "--headless" or argument.startswith("--headless=") for argument in arguments):
        disabled.append(_UNSEEN)
    merged = [switch + ",".join(values) for switch, values in ((_DISABLED, disabled), (_ENABLED, enabled)) if values]
    return [*merged, *(argument for argument in arguments if not argument.startswith((_DISABLED, _ENABLED)))]


def _values(arguments: list[str], switch: str) -> list[str]:
    return [argument[len(switch) :] for argument in arguments if argument.startswith(switch)]
