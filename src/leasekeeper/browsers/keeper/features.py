"""Merges Chromium's feature switches into one of each kind: of several `--disable-features` it obeys only the last.

For headless browsers it also disables the address bar's popup. Nobody sees it, and its renderer takes half of a
launch's CPU time.
"""

_DISABLED, _ENABLED = "--disable-features=", "--enable-features="
_UNSEEN = "WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup"


def merge_features(arguments: list[str]) -> list[str]:
    """The command line with one `--disable-features` and one `--enable-features` at most, both first."""
    disabled, enabled = _values(arguments, _DISABLED), _values(arguments, _ENABLED)
    if any(argument == "--headless" or argument.startswith("--headless=") for argument in arguments):
        disabled.append(_UNSEEN)
    merged = [switch + ",".join(values) for switch, values in ((_DISABLED, disabled), (_ENABLED, enabled)) if values]
    return [*merged, *(argument for argument in arguments if not argument.startswith((_DISABLED, _ENABLED)))]


def _values(arguments: list[str], switch: str) -> list[str]:
    return [argument[len(switch) :] for argument in arguments if argument.startswith(switch)]
