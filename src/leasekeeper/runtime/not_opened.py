"""Why a run has no browser, as a reason of the failure table, and whether its job is given back untouched.

Each error that an opening can meet becomes a `NotOpened` here. Opens nothing.
"""

from collections.abc import Callable
from datetime import timedelta

from leasekeeper.core.browsers import BrowserReport, LaunchRefusal
from leasekeeper.core.classify import classify, kind_of, summary
from leasekeeper.core.failures import Reason
from leasekeeper.driver_port import CannotOpen
from leasekeeper.errors import Fail, LeasekeeperError, LeaseLost, safe_str
from leasekeeper.evidence.files import EvidenceNotSaved
from leasekeeper.runtime.proxy_check import ProxyNotReady


class NotOpened(Exception):
    """There is no browser for this run. `give_back`: the job was not touched and keeps its place. `begun`: there may
    have been a browser for a moment; then `report` says how it ended. `engine`, `directory_token`: see `CannotOpen`;
    `retry_after`: see `LaunchRefusal`."""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        give_back: bool = False,
        engine: int | None = None,
        directory_token: int | None = None,
        retry_after: timedelta = timedelta(),
    ) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message
        self.give_back = give_back
        self.engine = engine
        self.directory_token = directory_token
        self.retry_after = retry_after
        self.begun = False
        self.report: BrowserReport | None = None


def as_not_opened(error: Exception) -> NotOpened:
    """Any error of an opening as NotOpened."""
    match error:
        case NotOpened():
            return error
        case EvidenceNotSaved():
            return NotOpened(Reason.EVIDENCE_NOT_SAVED, str(error))
        case CannotOpen():
            return NotOpened(
                error.reason,
                error.detail,
                give_back=error.give_back,
                engine=error.engine,
                directory_token=error.directory_token,
            )
        case ProxyNotReady():
            return NotOpened(error.reason, error.detail, give_back=True)
        case Fail():
            # Without the key of a secret this worker cannot run the job, but another may.
            return NotOpened(error.reason, error.detail, give_back=error.reason == Reason.SECRET_UNAVAILABLE)
        case LeaseLost():
            return NotOpened(Reason.LEASE_LOST, error.message, give_back=True)
        case LeasekeeperError():
            return NotOpened(Reason.BROWSER_LAUNCH_FAILED, error.message)
        case OSError():
            return NotOpened(Reason.BROWSER_LAUNCH_FAILED, str(error) or type(error).__name__)
    return NotOpened(Reason.BROWSER_LAUNCH_FAILED, f"{type(error).__name__}: {safe_str(error)}")


def why_launch_failed(
    error: Exception, refusal: LaunchRefusal | None, redact: Callable[[str], str], *, lost: bool
) -> NotOpened:
    """Why a launch failed: the keeper's reason if there is one, else Playwright's error."""
    if refusal is None:
        reason = classify(kind_of(error), str(error))
        text = summary(str(error), redact) or type(error).__name__
        failed = reason if reason != Reason.TASK_ERROR else Reason.BROWSER_LAUNCH_FAILED
        return NotOpened(failed, f"the browser could not be started: {text}")
    if refusal.reason != Reason.LEASE_LOST:
        # A launcher that is unavailable is not the job's failure.
        away = refusal.reason == Reason.LAUNCHER_UNAVAILABLE
        return NotOpened(refusal.reason, refusal.message, give_back=away, retry_after=refusal.retry_after)
    # The lease was lost before there was a browser: nothing happened to the profile, and the job keeps its place.
    # If only the keeper says so, the launch counts as failed: otherwise it would be retried without end.
    reason = Reason.LEASE_LOST if lost else Reason.BROWSER_LAUNCH_FAILED
    return NotOpened(reason, refusal.message, give_back=lost)


def given_back(refused: NotOpened, reason: str, message: str) -> NotOpened:
    """The same refusal for another reason, with the job given back: it keeps its place and its attempts."""
    answer = NotOpened(reason, message, give_back=True, engine=refused.engine, directory_token=refused.directory_token)
    answer.begun, answer.report = refused.begun, refused.report
    return answer
