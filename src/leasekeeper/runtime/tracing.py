"""Traces: the spans of a job, through OpenTelemetry's API, in a process that has loaded it. Other processes pay
nothing.

A process that wants spans has imported OpenTelemetry before (the SDK, an instrumentation, `leasekeeper worker` with an
OTLP endpoint). In all other processes each call here costs one lookup in `sys.modules`. What is kept with a job is
text, W3C's `traceparent`, and travels through processes without OpenTelemetry too.

Attributes are ids, codes and names of tasks: no payload, no address, no message of an error.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from leasekeeper.core.jobs import Job, JobSpec
from leasekeeper.core.leases import Lease
from leasekeeper.ports import Grant, Submitted
from leasekeeper.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

_API: Final = "opentelemetry.trace"
_IDS: Final = r"((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})"
# A later version of the header may be longer; its first part means the same.
_HEADER: Final = re.compile(rf"(?:00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(?:-.*)?)")


def from_header(text: str | None) -> str | None:
    """The `traceparent` of a request, in the form that is kept; None if there is none, or it is not valid."""
    found = None if text is None else _HEADER.fullmatch(text.strip())
    return None if found is None else f"00-{found[1] or found[2]}"


def trace_id(traceparent: str | None) -> str | None:
    """The id of the trace, to find it by; None without a `traceparent`."""
    return None if traceparent is None else traceparent[3:35]


def _tracer() -> "Tracer | None":
    """The tracer that starts spans; None in a process that has not loaded OpenTelemetry."""
    if _API not in sys.modules:
        return None
    from opentelemetry import trace

    return trace.get_tracer("leasekeeper", __version__)


def _context(parent: str | None) -> "Context | None":
    """The context of a span of another process. Without a parent None, which means the current one."""
    if parent is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": parent})


def current() -> str | None:
    """The current span as `traceparent`; None if there is none, or this process has not loaded OpenTelemetry."""
    if _API not in sys.modules:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def inherit() -> Callable[[], None]:
    """A function for another thread: called there, it makes this thread's current span the current one."""
    if _API not in sys.modules:
        return _nothing
    from opentelemetry import context

    here = context.get_current()

    def take_over() -> None:
        context.attach(here)

    return take_over


def _nothing() -> None:
    pass


class Step:
    """One span while it is open. Without OpenTelemetry, nothing."""

    def __init__(self, span: "Span | None" = None) -> None:
        self._span = span

    def note(self, **attributes: str | float | None) -> None:
        """Add attributes: ids, codes, numbers. None is left out."""
        if self._span is not None:
            self._span.set_attributes({f"leasekeeper.{k}": v for k, v in attributes.items() if v is not None})

    def fail(self, reason: str) -> None:
        """Mark the span as failed, for this reason (a code)."""
        if self._span is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", reason)
            self._span.set_status(Status(StatusCode.ERROR, reason))


@contextmanager
def step(
    name: str, *, parent: str | None = None, kind: str = "INTERNAL", **attributes: str | float | None
) -> Iterator[Step]:
    """A span, the current one of this context while the block runs. An exception marks it as failed; its text is left
    out."""
    tracer = _tracer()
    if tracer is None:
        yield Step()
        return
    from opentelemetry.trace import SpanKind

    with tracer.start_as_current_span(
        name, _context(parent), SpanKind[kind], record_exception=False, set_status_on_exception=False
    ) as span:
        opened = Step(span)
        opened.note(**attributes)
        try:
            yield opened
        except BaseException as error:
            opened.fail(type(error).__name__)
            raise


@contextmanager
def submitting(specs: Sequence[JobSpec]) -> Iterator["Submitting"]:
    """A span `submit` for each job, which is then kept with it: all later spans of the job are below it."""
    tracer = _tracer()
    if tracer is None:
        yield Submitting(specs, ())
        return
    from opentelemetry.trace import SpanKind

    spans = [tracer.start_span(f"submit {each.task}", _context(each.traceparent), SpanKind.PRODUCER) for each in specs]
    try:
        yield Submitting([_inside(each, span) for each, span in zip(specs, spans, strict=True)], spans)
    except BaseException as error:
        for span in spans:
            Step(span).fail(type(error).__name__)
        raise
    finally:
        for span in spans:
            span.end()


def _inside(spec: JobSpec, span: "Span") -> JobSpec:
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, set_span_in_context(span))
    return replace(spec, traceparent=carrier.get("traceparent", spec.traceparent))


class Submitting:
    """Jobs on their way to a store."""

    def __init__(self, specs: Sequence[JobSpec], spans: "Sequence[Span]") -> None:
        self.specs = specs
        self._spans = spans

    def done(self, answers: Sequence[Submitted]) -> None:
        """Add the store's answers to the spans."""
        for span, answer in zip(self._spans, answers, strict=False):
            job = answer.job
            Step(span).note(**_of_job(job), state=job.state.value, already_handled=answer.already_handled)


@contextmanager
def leased(grant: Grant) -> Iterator[Step]:
    """The span `lease`, from the grant to its end, and before it the span `wait`, from the time when the job was due.

    Both are below the job's `submit`. A job without one, of a schedule say, begins its trace with `wait`.
    """
    tracer, job = _tracer(), grant.job
    if tracer is None or job is None:
        yield Step()
        return
    parent = _context(job.traceparent)
    # The store's clock says how long the job waited; this machine's clock places that on the time line.
    waited = max(grant.lease.acquired_at - max(job.created_at, job.run_at or job.created_at), timedelta(0))
    now = time.time_ns()
    wait = tracer.start_span("wait", parent, start_time=now - int(waited.total_seconds() * 1e9))
    Step(wait).note(**_of_job(job), attempt=job.attempt, pool=job.pool)
    wait.end(now)
    with ExitStack() as stack:
        if job.traceparent is None:
            from opentelemetry.trace import use_span

            stack.enter_context(use_span(wait, record_exception=False, set_status_on_exception=False))
        opened = stack.enter_context(step("lease", parent=job.traceparent, kind="CONSUMER", **_of_lease(grant.lease)))
        opened.note(attempt=job.attempt, pool=job.pool)
        yield opened


def _of_job(job: Job) -> dict[str, Any]:
    return {"job_id": job.job_id, "task": job.task, "account_id": job.account_id, "profile_id": job.profile_id}


def _of_lease(lease: Lease) -> dict[str, Any]:
    return {
        "job_id": lease.job_id,
        "task": lease.task,
        "account_id": lease.account_id,
        "profile_id": lease.profile_id,
        "run_id": lease.run_id,
        "lease_id": lease.lease_id,
        "fencing_token": lease.token,
        "worker_id": lease.worker_id,
    }
