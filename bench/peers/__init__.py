"""Other ways to run jobs under one lock per profile, driven the same way.

Each module has `run(url, profiles, jobs_per_profile, workers, blocked, seconds_cap)` and returns a
`Result`. Its packages come from a bench-only environment: import the module where it is used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """What one peer reached: `done` jobs in `seconds`, and in which set-up."""

    jobs_per_s: float
    done: int
    seconds: float
    setup: str
