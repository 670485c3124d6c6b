"""How a run came to its end, decided from what the worker saw. Pure: the runner observes, this module decides."""

import json
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from leasekeeper.app import Signal, Task
from leasekeeper.core.browsers import BrowserReport
from leasekeeper.core.classify import Facts, classify, kind_of, summary
from leasekeeper.core.depth import MAX_DEPTH, too_deep
from leasekeeper.core.failures import Failure, Reason, handed_in, strictness, unknown
from leasekeeper.core.settle import Browser, EndFacts
from leasekeeper.errors import Fail, LeaseLost, safe_str
from leasekeeper.evidence.files import EvidenceNotSaved

MAX_RESULT = 1_000_000
MAX_TRACEBACK = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a task. `reason` is None if it completed, with `output`.

    `said`: the task or a detector named the reason; it was not classified from an exception.
    """

    reason: str | None = None
    message: str = ""
    output: Mapping[str, object] | None = None
    retry: bool = False
    said: bool = False

    def row(self, own: Mapping[str, Failure]) -> Failure | None:
        """How its reason is treated, in an app that registered `own`; None if the task completed."""
        return None if self.reason is None else handed_in(self.reason, own)

    def full_message(self, own: Mapping[str, Failure]) -> str:
        """The message. If the reason is not registered, it says so and suggests one that is."""
        doubt = "" if self.reason is None else unknown_here(self.reason, own)
        return f"{self.message} ({doubt})" if doubt and self.message else self.message or doubt


def unknown_here(reason: str, own: Mapping[str, Failure]) -> str:
    """The hint about a reason that the app has not registered; empty if it has."""
    doubt = unknown(reason, own)
    return doubt and f"{doubt} Reasons of your own are registered with app.reason"


def outcome_of_error(error: BaseException, task: Task, *, facts: Facts, redact: Callable[[str], str]) -> Outcome:
    """The outcome of a task that raised. `redact` removes secrets from the error's text before it is shortened."""
    match error:
        case Fail():
            return Outcome(reason=error.reason, message=error.detail, said=True)
        case LeaseLost():
            return Outcome(reason=Reason.LEASE_LOST, message=error.message)
        case EvidenceNotSaved():
            return Outcome(reason=Reason.EVIDENCE_NOT_SAVED, message=safe_str(error))
    reason = classify(kind_of(error), safe_str(error), facts)
    return Outcome(
        reason=reason,
        message=f"{type(error).__name__}: {summary(safe_str(error), redact)}",
        retry=reason == Reason.TASK_ERROR and task.retries(error),
    )


def traceback_of(error: BaseException, redact: Callable[[str], str]) -> str:
    """The traceback, without secrets. A long one loses its middle: the end shows the exception."""
    text = redact("".join(traceback.format_exception(error))).rstrip()
    if len(text) <= MAX_TRACEBACK:
        return text
    beginning = text[: MAX_TRACEBACK // 4].rpartition("\n")[0]
    return f"{beginning}\n  …\n{text[len(beginning) - MAX_TRACEBACK :].partition(chr(10))[2]}"


def outcome_of_result(result: object) -> Outcome:
    """The outcome of a task that returned `result`: TASK_ERROR, unless it is None or a mapping that fits into the run's
    record as JSON."""
    if result is not None and not isinstance(result, Mapping):
        kind = type(result).__name__
        return Outcome(reason=Reason.TASK_ERROR, message=f"the task returned {kind}; return a mapping, or nothing")
    try:
        deep = too_deep(result)
        size = 0 if deep else len(json.dumps(result, allow_nan=False))
    except Exception as error:  # noqa: BLE001 - mappings of the task's own may raise anything
        return Outcome(reason=Reason.TASK_ERROR, message=f"the task's result cannot be kept as JSON: {safe_str(error)}")
    if deep:
        message = f"the task's result is nested more than {MAX_DEPTH} levels deep: return it flatter, or attach a file"
        return Outcome(reason=Reason.TASK_ERROR, message=message)
    if size > MAX_RESULT:
        return Outcome(
            reason=Reason.TASK_ERROR, message=f"the task's result has {size:,} characters; attach it as a file"
        )
    return Outcome(output=result)


def strictest(outcome: Outcome, signals: Iterable[Signal], reasons: Mapping[str, Failure]) -> Outcome:
    """The outcome, changed by signals of the task or a detector: the reason that is strictest for the profile wins."""
    for signal in signals:
        before, after = strictness(outcome.row(reasons)), strictness(handed_in(signal.reason, reasons))
        if after > before or (after == before and not outcome.said):
            outcome = Outcome(reason=signal.reason, message=signal.message, output=outcome.output, said=True)
    return outcome


def unopened_facts(
    report: BrowserReport | None, *, begun: bool, final_url: str | None, throwaway: bool, evidence_saved: bool
) -> EndFacts:
    """The facts about the browser of a run whose task did not start. `begun`: a keeper was started, so there may have
    been a browser."""
    if not begun or (report is not None and report.no_browser):
        return EndFacts(browser=Browser.NONE, evidence_saved=evidence_saved)
    return end_facts(
        report,
        final_url=final_url,
        opened=False,
        throwaway=throwaway,
        evidence_saved=evidence_saved,
        proxy_changed=False,
    )


def end_facts(
    report: BrowserReport | None,
    *,
    final_url: str | None,
    opened: bool,
    throwaway: bool,
    evidence_saved: bool,
    proxy_changed: bool,
) -> EndFacts:
    """The facts about the browser at the end of a run, from the keeper's report. Without a report nothing is proven.

    A browser that was never `opened` is at about:blank. Of a throwaway copy only the processes must be gone.
    """
    where = final_url or (report.final_url if report else None) or (None if opened else "about:blank")
    browser, clause = Browser.NOT_PROVEN, "the keeper left no report"
    if report is not None:
        holds = report.proof.processes_gone if throwaway else report.proof.holds
        browser = Browser.CLOSED if holds else Browser.NOT_PROVEN
        clause = "" if holds else report.proof.failing_clause or "no proof was given"
        if report.no_browser:
            browser, clause = Browser.NONE, ""
    return EndFacts(
        browser=browser,
        failing_clause=clause,
        final_url=where,
        proxy_changed=proxy_changed,
        evidence_saved=evidence_saved,
    )
