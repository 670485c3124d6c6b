"""The ids of a run in every log line that is written in it, by whomever: Leasekeeper, a library, the task itself.

They are kept in the context of the run, which its asyncio tasks and threads inherit.
"""

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Final

from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease
from leasekeeper.runtime.tracing import trace_id

_OF_RUN: Final[ContextVar[Mapping[str, object]]] = ContextVar("leasekeeper_log_fields")
_NONE: Final[Mapping[str, object]] = {}


def bind(lease: Lease, job: Job | None = None) -> None:
    """From here on, lines of this context are about this run."""
    _OF_RUN.set({**ids_of(lease), "trace_id": None if job is None else trace_id(job.traceparent)})


def ids_of(lease: Lease) -> dict[str, object]:
    """The ids of a lease and its run, as fields of a line."""
    names = ("run_id", "job_id", "account_id", "profile_id", "lease_id", "token", "task", "worker_id")
    return {name: getattr(lease, name) for name in names}


def inherit() -> Callable[[], None]:
    """A call that gives another thread the fields of this context."""
    fields = _OF_RUN.get(_NONE)

    def take_over() -> None:
        _OF_RUN.set(fields)

    return take_over


class RunFields(logging.Filter):
    """Gives each record the ids of the run that it was written in. What a record says itself counts more."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in _OF_RUN.get(_NONE).items():
            if value is not None and not hasattr(record, name):
                setattr(record, name, value)
        return True
