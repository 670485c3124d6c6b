"""The result of a check of `leasekeeper doctor`: a status, what was found, what to do as codes, and the facts as data.

Also the helpers for the text of verdicts: counts, durations, sizes, the first few of a list.
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
    """The answer to a question. Each stands for a status."""

    YES = "yes"
    YES_BUT = "yes, but"
    NO = "no"


class Advice(StrEnum):
    """What has to be done, as a code. Its sentence is in `leasekeeper.wording.doctor`."""

    APPLY_FLEET = "apply_fleet"
    CHECK_STORE = "check_store"
    CORRECT_SETTING = "correct_setting"
    MIGRATE_STORE = "migrate_store"
    UPGRADE_PROGRAM = "upgrade_program"
    SET_CLOCKS = "set_clocks"
    RUN_SWEEPER = "run_sweeper"
    START_WORKER = "start_worker"
    BRING_WORKERS_TO_ONE_VERSION = "bring_workers_to_one_version"
    BRING_BOTH_TO_ONE_VERSION = "bring_both_to_one_version"
    BRING_BROWSERS_TO_ONE_VERSION = "bring_browsers_to_one_version"
    READ_LOGS = "read_logs"
    CORRECT_WEBHOOK_SETTINGS = "correct_webhook_settings"
    RUN_SENDING_SWEEPER = "run_sending_sweeper"
    SET_WEBHOOK_SECRET = "set_webhook_secret"  # noqa: S105 - the name of an advice
    SET_SWEEPERS_WEBHOOK_SECRET = "set_sweepers_webhook_secret"  # noqa: S105 - the name of an advice
    REPLAY_WEBHOOKS = "replay_webhooks"
    START_LAUNCHER = "start_launcher"
    FIT_LIMITS_TO_PLAN = "fit_limits_to_plan"
    CHOOSE_DATA_DIR = "choose_data_dir"
    RUN_AS_OWNER = "run_as_owner"
    RESTRICT_DATA_DIR = "restrict_data_dir"
    CHECK_FOLDER = "check_folder"
    MOVE_STORE = "move_store"
    USE_LOCAL_DISK = "use_local_disk"
    USE_DISK = "use_disk"
    MAKE_ROOM = "make_room"
    CHECK_DISK = "check_disk"
    USE_FASTER_DISK = "use_faster_disk"
    CHECK_EVIDENCE = "check_evidence"
    CHECK_PROFILE_STORE = "check_profile_store"
    SET_SECRET_KEY = "set_secret_key"  # noqa: S105 - the name of an advice
    SET_EARLIER_KEY = "set_earlier_key"
    INSTALL_BROWSER = "install_browser"
    START_BROWSER_BY_HAND = "start_browser_by_hand"
    MAKE_CLOSE_CLEAN = "make_close_clean"
    START_FEWER_AT_ONCE = "start_fewer_at_once"
    RUN_AS_ORDINARY_USER = "run_as_ordinary_user"
    INSTALL_FONTS = "install_fonts"
    INSTALL_FONTS_FOR_SCRIPTS = "install_fonts_for_scripts"
    SITES_NOTICE_FONTS = "sites_notice_fonts"
    START_DISPLAY = "start_display"
    SET_DISPLAY = "set_display"
    DECLARE_PROFILES = "declare_profiles"
    NAME_WORKERS = "name_workers"
    GIVE_RENEWAL_TIME = "give_renewal_time"
    FIND_SILENT_HOLDERS = "find_silent_holders"
    DECIDE_REVIEWS = "decide_reviews"
    MAKE_ROOM_FOR_EVIDENCE = "make_room_for_evidence"
    KEEP_EVENTS_LONGER = "keep_events_longer"
    USE_SHARING = "use_sharing"
    REVIEW_MANUAL_USE = "review_manual_use"
    GIVE_REASONS = "give_reasons"
    ROUTE_BY_ACCOUNT = "route_by_account"
    FIND_OTHER_PROGRAM = "find_other_program"
    FIND_LOSING_MACHINES = "find_losing_machines"
    SET_PROBE = "set_probe"
    EXPECT_ENVIRONMENT = "expect_environment"
    RETRY_FEWER_REASONS = "retry_fewer_reasons"
    REPORT_BUG = "report_bug"
    KEEP_JOBS_LONGER = "keep_jobs_longer"


class Step(StrEnum):
    """A way to follow an advice, as a code. The program that shows it says how: the command line, what to type."""

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
    INSTALL_BROWSER = "install_browser"
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
    """The result of one check. `advice` is empty iff nothing has to be done; `steps` are ways to do it."""

    status: Status
    found: str
    advice: tuple[Advice, ...] = ()
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


def warn(found: str, *todo: Advice | Step, **facts: object) -> Verdict:
    return _trouble(Status.WARN, found, todo, facts)


def fail(found: str, *todo: Advice | Step, **facts: object) -> Verdict:
    return _trouble(Status.FAIL, found, todo, facts)


def _trouble(status: Status, found: str, todo: Sequence[Advice | Step], facts: Mapping[str, object]) -> Verdict:
    return Verdict(
        status=status,
        found=found,
        advice=tuple(each for each in todo if isinstance(each, Advice)),
        steps=tuple(each for each in todo if isinstance(each, Step)),
        facts=facts,
    )


def skip(found: str, *steps: Step, **facts: object) -> Verdict:
    return Verdict(status=Status.SKIP, found=found, steps=steps, facts=facts)


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    """How many findings there are of each status."""
    return {status.value: sum(f.verdict.status is status for f in findings) for status in Status}


def exit_code(findings: Sequence[Finding], *, strict: bool) -> int:
    """The program's exit code: 2 if something failed, 1 if something was warned of and `strict`, else 0."""
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
