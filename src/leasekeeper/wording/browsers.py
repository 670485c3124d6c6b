"""Why a browser's use ended, in words: for a run's evidence, and for the reason of a run whose browser is gone."""

from collections.abc import Mapping
from typing import Final

from leasekeeper.core.browsers import EndCause

END_CAUSES: Final[Mapping[EndCause, str]] = {
    EndCause.CLOSED: "closed by the worker",
    EndCause.REVOKED: "revoked: the lease was over",
    EndCause.DEADLINE: "revoked: the holder's deadline had passed",
    EndCause.WORKER_GONE: "closed by the keeper, because the worker was gone",
    EndCause.DRIVER_GONE: "closed by the keeper, because the Playwright process was gone",
    EndCause.BROWSER_GONE: "the browser ended by itself",
    EndCause.MESSAGE_TOO_LARGE: "the page made the browser send one DevTools message above the limit "
    "(LEASEKEEPER_MAX_MESSAGE_MB), so the keeper closed it",
    EndCause.TERMINATED: "the keeper got a signal to stop",
    EndCause.OVERDUE: "ended by another program, because its keeper had not done it in time",
}


def end_text(cause: str) -> str:
    """Why a browser's use ended, by the cause in a record. One that this program does not know is shown as it is."""
    return next((text for known, text in END_CAUSES.items() if known == cause), cause)


def gone_text(cause: EndCause | None, otherwise: str | None = None) -> str:
    """Why a run lost its browser: that a message was too large if the keeper closed it for that, else `otherwise`."""
    if cause is EndCause.MESSAGE_TOO_LARGE:
        return END_CAUSES[cause]
    return otherwise or END_CAUSES[EndCause.BROWSER_GONE]
