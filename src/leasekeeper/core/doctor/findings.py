"""What a check of `leasekeeper doctor` answers: a status, what was found, what to do, and the facts as data.

Beside the types, the text of verdicts: counts, durations, sizes, the first few of a list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class Answer(StrEnum):
    """How a question is answered. Each stands for a status."""

    YES = "yes"
    YES_BUT = "yes, but"
    NO = "no"


class Step(StrEnum):
    """What a person can do next, as a code. Whoever shows it says how: the command line, what to type."""

    APPLY_FLEET = "apply_fleet"
    MIGRATE_STORE = "migrate_store"
    START_SWEEPER = "start_sweeper"
    START_WORKER = "start_worker"
    MAKE_WEBHOOK_SECRET = "make_webhook_secret"  # noqa: S105 - the name of a step
    LIST_EXHAUSTED_WEBHOOKS = "list_exhausted_webhooks"
    LIST_SETTINGS = "list_settings"
    LIST_REVIEWS = "list_reviews"
    LIST_FAILED_RUNS = "list_failed_runs"
    EXPLAIN_PROFILE = "explain_profile"
    OPEN_PROFILE = "open_profile"
    RESTRICT_DATA_DIR = "restrict_data_dir"
    INSTALL_BROWSER_LIBRARIES = "install_browser_libraries"
    INSTALL_FONTS = "install_fonts"
    START_FEWER_AT_ONCE = "start_fewer_at_once"
    NAME_WORKERS = "name_workers"


class Group(StrEnum):
    INSTALLATION = "installation"
    PROFILES = "profiles"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Check:
    """One check or question. The id is stable: programs select and compare by it."""

    id: str
    group: Group
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of one check. `todo` is empty iff nothing has to be done; `steps` are ways to do it."""

    status: Status
    found: str
    todo: str = ""
    steps: tuple[Step, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    answer: Answer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A check with its verdict."""

    check: Check
    verdict: Verdict


_I: Final = Group.INSTALLATION

CHECKS: Final = (
    Check("settings", _I, "Are all settings valid?"),
    Check("store", _I, "Can the store be reached?"),
    Check("schema", _I, "Is the store's schema this program's?"),
    Check("clock", _I, "Do this machine's clock and the store's agree?"),
    Check("sweeper", _I, "Does somebody sweep?"),
    Check("workers", _I, "Do workers report, all of one version?"),
    Check("webhooks", _I, "Can webhooks be sent?"),
    Check("launchers", _I, "Does each launcher answer, and do the limits fit its plan?"),
    Check("data_dir", _I, "Does the data directory belong to this user alone?"),
    Check("file_system", _I, "Are data and store on local disks?"),
    Check("disk_space", _I, "Is there room on the disks?"),
    Check("disk_sync", _I, "How long does it take to write durably?"),
    Check("evidence", _I, "Can evidence be delivered to where it is kept?"),
    Check("profile_store", _I, "Can snapshots of profiles be stored, and is there a key for them?"),
    Check("browser", _I, "Is there a browser?"),
    Check("launch", _I, "Does a browser start behind the keeper, and close cleanly?"),
    Check("fonts", _I, "Are there fonts for what pages show?"),
    Check("display", _I, "Is there a display for visible runs?"),
)

MB: Final = 1_000_000
GB: Final = 1_000 * MB


def ok(found: str, **facts: object) -> Verdict:
    return Verdict(status=Status.OK, found=found, facts=facts)


def warn(found: str, todo: str, *steps: Step, **facts: object) -> Verdict:
    return Verdict(status=Status.WARN, found=found, todo=todo, steps=steps, facts=facts)


def fail(found: str, todo: str, *steps: Step, **facts: object) -> Verdict:
    return Verdict(status=Status.FAIL, found=found, todo=todo, steps=steps, facts=facts)


def skip(found: str, *steps: Step, **facts: object) -> Verdict:
    return Verdict(status=Status.SKIP, found=found, steps=steps, facts=facts)


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    """How many findings there are of each status."""
    return {status.value: sum(f.verdict.status is status for f in findings) for status in Status}


def exit_code(findings: Sequence[Finding], *, strict: bool) -> int:
    """What the program answers: 2 if something failed, 1 if something was warned of and `strict`, else 0."""
    found = {finding.verdict.status for finding in findings}
    if Status.FAIL in found:
        return 2
    return 1 if strict and Status.WARN in found else 0


def names(items: Sequence[str], limit: int = 5) -> str:
    """The first few of a list, for a sentence."""
    shown = ", ".join(items[:limit])
    return f"{shown} and {len(items) - limit:,} more" if len(items) > limit else shown


def count(number: int, noun: str) -> str:
    """`1 profile`, `2 profiles`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def span(duration: timedelta) -> str:
    """A duration as people say it: `45 s`, `12 min`, `3 h`, `5 days`."""
    seconds = duration.total_seconds()
    for unit, size, limit in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < size * limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def size(number: int) -> str:
    return f"{number / GB:.1f} GB" if number >= GB else f"{number / MB:.0f} MB"
