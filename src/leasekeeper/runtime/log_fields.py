"""Adds the ids of a run to every log line that is written in it, by Leasekeeper, a library or the task itself.

The ids are kept in the context of the run, which its asyncio tasks and threads inherit.
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
    """From here on, log lines of this context have the ids of this run."""
    _OF_RUN.set({**ids_of(lease), "trace_id": None if job is None else trace_id(job.traceparent)})


def ids_of(lease: Lease) -> dict[str, object]:
    """The ids of a lease and its run, as fields of a log line."""
    names = ("run_id", "job_id", "account_id", "profile_id", "lease_id", "token", "task", "worker_id")
    return {name: getattr(lease, name) for name in names}


def inherit() -> Callable[[], None]:
    """Returns a function that another thread calls to get the fields of this context."""
    fields = _OF_RUN.get(_NONE)

    def take_over() -> None:
        _OF_RUN.set(fields)

    return take_over


class RunFields(logging.Filter):
    """Adds to each record the ids of the run that it was written in. Fields that the record has already are kept."""

    def filter(self, record: logging.LogRecord) -> bool:
        for name, value in _OF_RUN.get(_NONE).items():
            if value is not None and not hasattr(record, name):
                setattr(record, name, value)
        return True
