"""Writes docs/reference from the program itself: `python -m tools.docs`, or `make docs`.

A page is a function, PAGES names them all; the longest have modules of their own. Rows come from the code's own
tables; what a row means in words stands beside its page, and a row without words is an error. `--check` writes nothing
and fails if a page differs.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from leasekeeper.cli.exit_codes import EXIT_CODES, exit_code
from leasekeeper.cli.hints import unblocking
from leasekeeper.cli.reference import reference as command_line
from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.alerts import EVENT_ALERTS, JOB_ALERTS, PROFILE_ALERTS, REVIEW_OPENED
from leasekeeper.core.control import NotResumed
from leasekeeper.core.events import EventType
from leasekeeper.core.failures import FAILURES, ProfileRule, RetryRule
from leasekeeper.core.fleet import ChangeKind
from leasekeeper.core.leases import Refusal
from leasekeeper.core.readiness import Blocked, Expected, NoWorker
from leasekeeper.errors import error_tree
from leasekeeper.service.metric_table import CALL_SECONDS, METRICS, SECONDS
from leasekeeper.settings_table import PREFIX, SETTINGS, Setting
from leasekeeper.wire import fleet_schema, fleet_table, job_schema, job_table, port_schema
from leasekeeper.wording import REFUSALS, UNBLOCKED_BY
from tools.http_api import http_api
from tools.lists import lists
from tools.markdown import code, page, summary, table
from tools.python_api import python_api
from tools.states import states
from tools.tokens import tokens

ROOT: Final = Path(__file__).resolve().parents[1]
REFERENCE: Final = ROOT / "docs/reference"
ARCHITECTURE: Final = ROOT / "ARCHITECTURE.md"

RETRY_RULES: Final = {
    RetryRule.YES: "yes",
    RetryRule.NO: "no",
}
PROFILE_RULES: Final = {
    ProfileRule.AVAILABLE: "available",
    ProfileRule.REVIEW_REQUIRED: "review_required",
    ProfileRule.QUARANTINED: "quarantined",
    ProfileRule.STALE: "stale, then resolved",
}
BLOCKED: Final = {
    Blocked.PROFILE_LEASE: "the profile, or the routing key of its account, is in use",
    Blocked.ACCOUNT_PAUSE: "a person paused the account",
    Blocked.PAUSE: "a person paused its pool, or everything",
    Blocked.PROXY_MISMATCH: "the job expects another proxy or region, or the proxy exits elsewhere than declared",
    Blocked.PROXY_UNREACHABLE: "the profile's proxy cannot be reached",
    Blocked.ENVIRONMENT_MISMATCH: "the job expects another language or timezone, or the profile was last opened by "
    "a newer browser (direct leases)",
    Blocked.REVIEW_REQUIRED: "the profile is in state review_required",
    Blocked.PROFILE_STATE: "the profile is stale, quarantined or disabled",
    Blocked.CAPACITY: "the pool's limit is reached",
    Blocked.APPROVAL: "risk_level is review_required, and nobody approved the job yet",
    Blocked.NO_WORKER: "no worker of the pool takes the task: none ever offered it, or all are gone, paused or unwell",
    Blocked.HOME: "the profile's directory is on a machine where no live worker offers the task",
    Blocked.DUPLICATE: "not a state: the answer to a job whose idempotency key was used before",
}
WEBHOOK: Final = ("delivery_id", "type", "host", "attempts", "answer")
# What put the profile into the state that the event led to.
STATE: Final = ("state_cause", "state_data")
TOKEN: Final = ("token_id", "name", "scopes")
# When an event is written, and what its `data` holds.
EVENTS: Final[Mapping[EventType, tuple[str, tuple[str, ...]]]] = {
    EventType.JOB_SUBMITTED: ("a job was accepted", ("task", "reason")),
    EventType.JOB_ALREADY_HANDLED: ("a job came again with the same idempotency key", ("reason",)),
    EventType.JOB_DUE: ("a scheduled job's time came", ("task", "reason")),
    EventType.JOB_BLOCKED: (
        "a submitted job cannot run now (no `job_state`: it waits in its lane), or the head of a lane was not ready",
        ("task", "reason"),
    ),
    EventType.JOB_UNBLOCKED: ("what blocked a job was checked again", ("task", "reason")),
    EventType.JOB_DECIDED: ("a person decided about a job", ("action", "note", "from")),
    EventType.PROFILE_LOCK_CONFLICT: (
        "a job was due while its profile was leased to another run, or somebody without a job was refused the profile",
        (
            "profile_id", "blocked_job_id", "blocked_task", "blocked_purpose", "blocked_worker_id", "current_job_id",
            "current_run_id", "current_worker_id", "current_profile_id", "decision", "next_check_seconds", "cause",
        ),
    ),
    EventType.LEASE_GRANTED: ("a lease began", ("token", "routing_key", "purpose", "mode", "attempt", *STATE)),
    EventType.CHECKPOINT_SAVED: ("a holder reached a safe step", ("step",)),
    EventType.SECTION_ENTERED: ("a holder entered a mutating section", ("section", "idempotent")),
    EventType.SECTION_LEFT: ("a holder left a mutating section", ("section",)),
    EventType.HUMAN_REQUESTED: ("a run asked for a person, and waits", ("what",)),
    EventType.HUMAN_ANSWERED: ("a person answered it through the store, with a note", ("outcome", "note")),
    EventType.HUMAN_REQUEST_WITHDRAWN: ("it does not wait any more", ()),
    EventType.CONTROL_PASSED: (
        "a person took an open browser, or handed it back", ("from", "to", "run_before", "note"),
    ),
    EventType.RUN_SETTLED: (
        "a holder reported its ending",
        ("result", "stop_reason", "belongs_to", "profile_reason", *STATE, "directory_token", "size_bytes"),
    ),
    EventType.LEASE_EXPIRED: (
        "a lease ran out of time", ("token", "status", "last_safe_step", "open_section", "release_policy", *STATE),
    ),
    EventType.LEASE_REVOKED: (
        "a person took a lease away", ("token", "note"),
    ),
    EventType.LAUNCHER_SILENT: (
        "the launcher of a lost run did not say whether its browser still runs; it is asked again",
        ("launcher_id", "reason", *STATE),
    ),
    EventType.STALE_RESOLVED: ("an ending that nobody explained was resolved", ("reason", "reported_by", *STATE)),
    EventType.STALE_WORKER_WRITE_REJECTED: (
        "a late write was refused; nothing else changed", ("lease_id", "token", "write", "why"),
    ),
    EventType.MANUAL_USE_DETECTED: ("somebody used the profile by hand between two runs", ("found", "policy")),
    EventType.PROFILE_ADDED: ("a fleet declared a new profile", STATE),
    EventType.PROFILE_ADOPTED: (
        "a person adopted a used profile that was made outside of Leasekeeper", ("directory", "engine"),
    ),
    EventType.PROFILE_IMPORTED: (
        "a person made a directory, an archive or a storage state the session of a profile",
        ("source", "engine", "token"),
    ),
    EventType.PROFILE_EXPORTED: ("a person took a copy of a profile's session away", ("target", "token")),
    EventType.PROFILE_RESTORED: (
        "a profile went back to a snapshot, by a person or by its release policy",
        ("token", "restored_from", "verdict", "home_before"),
    ),
    EventType.PROFILE_NOT_SAVED: (
        "a run changed a profile, and no snapshot of it could be uploaded: it stays at home", ("home", "reason"),
    ),
    EventType.PROFILE_TOO_LARGE: (
        "a profile's directory grew above its `max_size_mb`", ("size_bytes", "max_size_mb"),
    ),
    EventType.SNAPSHOT_SAVED: (
        "a run's snapshot of its profile was kept",
        ("snapshot_id", "token", "size_bytes", "packed_bytes", "verdict", "clean"),
    ),
    EventType.SNAPSHOT_DELETED: ("a snapshot that was not kept any more is gone", ("snapshot_id", "token")),
    EventType.PROFILE_DECIDED: ("a person decided about a profile", ("action", "note", "from", "drain", *STATE)),
    EventType.PAUSED: (
        "a person paused everything, a pool or a worker",
        ("scope", "name", "note", "until, if it ends by itself"),
    ),
    EventType.RESUMED: ("a person resumed what was paused, or the pause ended by itself", ("scope", "name", "note")),
    EventType.ACCOUNT_PAUSED: (
        "an account was paused: by a person, or because it is banned",
        ("note", "until, if it ends by itself"),
    ),
    EventType.ACCOUNT_RESUMED: ("a person resumed an account", ("note",)),
    EventType.ACCOUNT_BAN_CHANGED: (
        "a run found an account banned, or a person said what is known of a ban", ("ban_status", "from", "note"),
    ),
    EventType.NOTE_ADDED: (
        "a person or a run wrote a note on a profile or an account", ("note_id", "about", "note"),
    ),
    EventType.SCHEDULE_FIRED: (
        "jobs of one time of a schedule were made; not `done`: more follow",
        ("schedule_id", "at", "jobs", "skipped", "done"),
    ),
    EventType.SCHEDULE_SKIPPED: (
        "a time was left out in one profile: the schedule's previous job there had not ended",
        ("schedule_id", "at", "why"),
    ),
    EventType.SCHEDULE_MISSED: (
        "times passed that nobody handled, and `catch_up` leaves them out",
        ("schedule_id", "first", "last", "times", "catch_up"),
    ),
    EventType.SCHEDULE_RUN: ("a person had a schedule run now", ("schedule_id", "at", "note")),
    EventType.SCHEDULE_PAUSED: ("a person paused a schedule", ("schedule_id", "note")),
    EventType.SCHEDULE_RESUMED: ("a person resumed a schedule", ("schedule_id", "note")),
    EventType.PROXY_MISMATCH: (
        "a proxy exits elsewhere than declared: its profiles' jobs wait", ("proxy_id", "region", "profiles", "detail"),
    ),
    EventType.PROXY_UNREACHABLE: (
        "a proxy cannot be reached: its profiles' jobs wait", ("proxy_id", "region", "profiles", "detail"),
    ),
    EventType.PROXY_RECOVERED: (
        "a proxy is as it should be again: its profiles' jobs move on",
        ("proxy_id", "region", "profiles", "was", "asked"),
    ),
    EventType.PROXY_ASKED_AGAIN: ("a person had a proxy asked again at once", ("proxy_id", "note")),
    EventType.FLEET_APPLIED: (
        "a fleet changed something; how many of each",
        tuple(f"{what}_{kind}" for what in ("proxy", "account", "profile", "limit", "schedule") for kind in ChangeKind),
    ),
    EventType.WORKER_STARTED: ("a worker reported for the first time", ("incarnation", "pool")),
    EventType.WORKER_STOPPED: ("a worker said that it stops", ("incarnation", "pool")),
    EventType.BROWSER_OUTLIVED_LEASE: (
        "a browser was ended by another program of its machine, since its keeper had not done it in time",
        ("lease_id", "stopped_by", "processes", "keeper", "all_gone", "seconds_late"),
    ),
    EventType.WORKER_UNWELL: ("a worker's machine cannot run jobs; it claims none", ("incarnation", "reason")),
    EventType.WORKER_WELL: ("it can run jobs again", ("incarnation",)),
    EventType.MESSAGES_REJECTED: (
        "a bridge took invalid messages, and put them apart; the first reasons",
        ("bridge", "source", "messages", "reasons"),
    ),
    EventType.WEBHOOK_DELIVERED: ("the receiver of a webhook answered that it has it", WEBHOOK),
    EventType.WEBHOOK_EXHAUSTED: ("a webhook was tried for the last time", WEBHOOK),
    EventType.WEBHOOK_REPLAYED: ("a person had a webhook sent once more", (*WEBHOOK, "note")),
    EventType.TOKEN_CREATED: ("a token of the API was created", TOKEN),
    EventType.TOKEN_REVOKED: ("a person revoked a token of the API", (*TOKEN, "note")),
    EventType.SECRET_STORED: ("a secret was stored, or encrypted anew", ("name", "key_id", "version", "rotated")),
    EventType.SECRET_REMOVED: ("a stored secret was removed", ("name", "note")),
    EventType.WORKER_SILENT: (
        "a worker no longer reports and did not stop; once for each silence", ("incarnation", "pool", "heartbeat_at"),
    ),
    EventType.WORKER_RETURNED: (
        "a worker that was silent reports again", ("incarnation", "pool", "silent_seconds"),
    ),
    EventType.ENDPOINT_ADDED: ("an endpoint was registered for alerts", ("endpoint_id", "events")),
    EventType.ENDPOINT_ENABLED: ("a person enabled an endpoint", ("endpoint_id", "events", "note")),
    EventType.ENDPOINT_DISABLED: (
        "a person disabled an endpoint, or it answered 410 (note `gone`)", ("endpoint_id", "events", "note"),
    ),
    EventType.ENDPOINT_REMOVED: ("a person removed an endpoint", ("endpoint_id", "events", "note")),
    EventType.ENDPOINT_PINGED: ("a person sent a test message to an endpoint", ("endpoint_id", "events", "note")),
    EventType.CLOCK_JUMPED: (
        "the store's clock jumped, and expiry pauses", ("jump_seconds", "expiry_paused_seconds"),
    ),
}  # fmt: skip


def failures() -> str:
    """Why runs fail, and what becomes of the job and of the profile."""
    return page(
        "Failures",
        "Why a run stopped decides what becomes of its job and of its profile. A holder names the reason:\n"
        '`raise Fail("LOGIN_REQUIRED", "the shop shows its form")`.',
        table(
            ["reason", "belongs to", "retry", "profile"],
            [
                (f"`{row.reason}`", row.belongs_to, RETRY_RULES[row.retry], PROFILE_RULES[row.profile])
                for row in FAILURES.values()
            ],
        ),
        "- A reason that is neither in the table nor registered with `app.reason` may be a misspelt one: it is never\n"
        "  retried, and the profile waits for a person (`review_required`).\n"
        "- The facts can only make it stricter: an open mutating section, an unknown final URL or a changed proxy\n"
        "  quarantine the profile; a close that was not proven makes it stale.\n"
        "- Nothing is retried that may have been done: a mutating section was open, or was left since the last safe\n"
        "  step, and not declared idempotent. That means review, whatever the table or the job says.\n"
        "- A retry waits (settings `backoff_*`, or the job's `retry`). After `max_attempts` the job is `dead`; what\n"
        "  may not be retried goes to `review`.\n"
        "- A job whose runs lost their worker twice goes to `review`, whatever attempts are left.\n"
        "- A job's `retry.reasons` replaces the column *retry* for that job. An ending with `TASK_ERROR` may say\n"
        "  itself that it is worth another try (`Ending.retry`).\n"
        "- A reason of your own may come with its row (`Ending.registered`); it cannot replace one of the table.",
    )


def blocked_reasons() -> str:
    """Why a job waits, and what ends that."""
    return page(
        "Blocked reasons",
        "Blocked is not failed: waiting uses up no attempt, and each reason has a next step.\n"
        "`leasekeeper why job ID` says the same about one job, with the holder and the times.",
        table(
            ["reason", "when", "what ends it"],
            [(f"`{reason}`", BLOCKED[reason], _unblocked(reason)) for reason in Blocked],
        ),
        "What exactly blocks a job, as data, is `block` of `why`. A mismatch names its `field`, what is `wanted` and\n"
        f"what is `actual`: {code(Expected)}. `no_worker` is {code(NoWorker)}; a\n"
        "browser that is too old comes with the `engine` that the profile needs. `home` has the profile's directory.",
    )


def _unblocked(reason: Blocked) -> str:
    """What ends a reason for waiting, and on the command line how."""
    command = unblocking(reason)
    return UNBLOCKED_BY[reason] + (f" (`{command}`)" if command else "")


def settings() -> str:
    """Every setting."""
    return page(
        "Settings",
        f"Each is read from the environment as `{PREFIX}NAME`, else from the settings file by its name in small\n"
        "letters; `connect()` and `App()` take them by name as well, and win over both. `leasekeeper settings` shows\n"
        "each value in force and where it comes from. All processes of one fleet should use the same: put them into\n"
        "the file. `renew_every` < `holder_stops_after` < `lease_ttl` must hold. A variable whose name is nearly one\n"
        "of these is refused: it was meant to say something. Any other `LEASEKEEPER_` variable is warned about once\n"
        "and ignored.",
        "The settings file is TOML. One file is read, the first of these:\n\n"
        "1. the one that `--config FILE` or `LEASEKEEPER_CONFIG` names;\n"
        "2. `leasekeeper.toml` beside the SQLite file that `--store`, a program or `LEASEKEEPER_STORE` names;\n"
        "3. `leasekeeper.toml` in the working directory.",
        '```toml\n# leasekeeper.toml\nstore = "sqlite:///leasekeeper.db"\nlease_ttl = 90\n```',
        "Paths in the file (`store`, `data_dir`, a `browser` with a slash) are relative to the file. A name that the\n"
        "table does not have is an error. Keep a file that holds `webhook_secret` or a password to yourself\n"
        "(`chmod 600`).",
        table(
            ["environment", "default", "unit", "from – to", "meaning"],
            [
                (
                    f"`{PREFIX}{setting.name.upper()}`",
                    f"`{_number(setting.default)}`",
                    setting.unit,
                    _bounds(setting),
                    setting.doc,
                )
                for setting in SETTINGS
            ],
        ),
        "A lease with another TTL (`lock_timeout_seconds` of a job, `ttl` of a direct lease) scales the other three\n"
        "durations in proportion.",
    )


def _number(value: str | float | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bounds(setting: Setting) -> str:
    if isinstance(setting.default, str):
        return ""
    top = "" if setting.maximum >= Setting("", None, "", "").maximum else f"{setting.maximum:g}"
    return f"{setting.minimum:g} – {top}".rstrip()


def errors() -> str:
    """Every exception with its code."""
    return page(
        "Errors",
        "Everything that Leasekeeper raises on purpose is a `leasekeeper.LeasekeeperError` with a stable `code` and a\n"
        "`message` for people. Indented names are kinds of the one above. The last column is what the command line\n"
        "leaves with.",
        'As JSON (`--json`, on stderr) an error is `{"error": {"code", "message", "problems", "data"}}`:\n'
        "`problems` names each field at fault (`where`, a path as `jobs[3].priority`, and `message`), `data` has the\n"
        "fields of the column *data* that are known. Both are left out where there is nothing to say.",
        table(
            ["code", "exception", "meaning", "data", "exit"],
            [
                (
                    f"`{kind.code}`",
                    f"{'&emsp;' * depth}`{kind.__name__}`",
                    summary(kind),
                    code(kind.declared()),
                    exit_code(kind.__new__(kind)),
                )
                for kind, depth in error_tree()
            ],
        ),
        "## Exit codes",
        table(["code", "meaning"], EXIT_CODES.items()),
        "## Refusals",
        "Why a write under a lease is refused: `refusal` of an error, `refused` of an answer, `why` of the event.",
        table(["refusal", "meaning"], [(f"`{refusal}`", REFUSALS[refusal]) for refusal in Refusal]),
        "## Conflicts",
        f"`cause` of `CONFLICT` is one of {code(ConflictReason)}. Of `{ConflictReason.NOT_RESUMABLE}`, `why` may be "
        f"one of {code(NotResumed)}.",
    )


def events() -> str:
    """Every line that the audit log may hold."""
    return page(
        "Events",
        "The audit log: one immutable line for every decision and every state change, written in the same commit.\n"
        "An event has `seq, at, type`, the ids it is about (`account_id, profile_id, job_id, run_id, worker_id`),\n"
        "`actor` for a person's decision, `job_state` and `profile_state` if it led to one, and `data`. Replaying the\n"
        "states of a record's events gives its state. Payloads and secrets never enter an event.",
        table(
            ["type", "written when", "data"],
            [(f"`{kind}`", EVENTS[kind][0], code(EVENTS[kind][1])) for kind in EventType],
        ),
        "`seq` grows in the order of commits of one record. On PostgreSQL two transactions that touch different\n"
        "records may become visible in another order than their `seq`.",
    )


def alerts() -> str:
    """Every name that the filter of an endpoint may have, and where it comes from."""
    jobs = [(f"`{name}`", f"a job is {state}", "the same as for `callback_url`") for state, name in JOB_ALERTS.items()]
    profiles = [(f"`{name}`", f"a profile is now `{state}`", "the event") for state, name in PROFILE_ALERTS.items()]
    reviews = [(f"`{REVIEW_OPENED}`", "a profile or a job waits for a person", "the review")]
    others = [(f"`{name}`", f"event `{kind}`: {EVENTS[kind][0]}", "the event") for kind, name in EVENT_ALERTS.items()]
    return page(
        "Alerts",
        "What a registered endpoint can be called for: `leasekeeper webhooks add ID URL --event NAME`. `profile.*` is\n"
        "all of that group, `*` is everything. A message has `type` (the name), `timestamp` and `data`. How to\n"
        "receive them: [alerts in Slack, PagerDuty or a script](../howto/send-alerts.md).",
        table(["name", "sent when", "data"], [*jobs, *profiles, *reviews, *others]),
        "Data that is an event has `event` (its type), the ids that it is about, `actor`, `job_state`,\n"
        "`profile_state` and `data` as [events](events.md) lists it. `webhook.ping` is sent by\n"
        "`leasekeeper webhooks ping` alone.",
    )


def metrics() -> str:
    """Every metric of /metrics."""
    rows = [(f"`{row.name}`", row.kind, code(row.labels), row.help) for row in METRICS]
    return page(
        "Metrics",
        "`GET /metrics` of `leasekeeper server`, in Prometheus' text format. How to scrape it, with a dashboard and\n"
        "alert rules: [watch a fleet with Prometheus and Grafana](../howto/watch-with-prometheus.md).",
        table(["name", "type", "labels", "meaning"], rows),
        "Buckets of histograms, in seconds: "
        f"{', '.join(f'{each:g}' for each in SECONDS)}; of `leasekeeper_store_call_seconds`: "
        f"{', '.join(f'{each:g}' for each in CALL_SECONDS)}.",
    )


def job_fields() -> str:
    """The fields of a job."""
    return page(
        "A job",
        "The fields of a job, the same for `client.submit`, `leasekeeper submit --file jobs.jsonl` and every store.\n"
        "As JSON Schema: [job.schema.json](job.schema.json). Every name also has a camelCase form on input;\n"
        "null is the same as absent.",
        job_table(),
        "A job that a [schedule](../howto/run-on-a-schedule.md) made has two more labels: `schedule` (its id) and\n"
        "`schedule_time`; its `idempotency_key` is `schedule:ID:TIME:PROFILE`.",
    )


def fleet_fields() -> str:
    """The fields of a fleet file."""
    return page(
        "fleet.yaml",
        "What `leasekeeper apply` reads. As JSON Schema: [fleet.schema.json](fleet.schema.json).\n"
        "How to write one: [Declare a fleet](../howto/declare-a-fleet.md),\n"
        "[run on a schedule](../howto/run-on-a-schedule.md).",
        fleet_table(),
    )


def schema(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "alerts.md": alerts,
    "blocked-reasons.md": blocked_reasons,
    "cli.md": command_line,
    "errors.md": errors,
    "events.md": events,
    "failures.md": failures,
    "fleet.md": fleet_fields,
    "fleet.schema.json": lambda: schema(fleet_schema()),
    "http-api.md": http_api,
    "job.md": job_fields,
    "job.schema.json": lambda: schema(job_schema()),
    "lists.md": lists,
    "metrics.md": metrics,
    "port.schema.json": lambda: schema(port_schema()),
    "python.md": python_api,
    "settings.md": settings,
    "states.md": states,
    "tokens.md": tokens,
}


def differing(folder: Path) -> list[str]:
    """The pages that are not there, or not what the program says."""
    return [
        name
        for name, write in PAGES.items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != write()
    ]


def modules() -> str:
    """ARCHITECTURE.md with its list of modules as the tree has them."""
    before, _, rest = ARCHITECTURE.read_text(encoding="utf-8").partition("- `leasekeeper/`")
    after = rest.partition("\n## ")[2]
    top = ROOT / "src" / "leasekeeper"
    packages: dict[str, list[str]] = {}
    for path in sorted(top.rglob("*.py")):
        if path.name != "__init__.py":
            packages.setdefault(f"{path.parent.relative_to(top)}/", []).append(f"`{path.stem}`")
    lines = [f"- `{'leasekeeper/' if name == './' else name}`: {', '.join(found)}" for name, found in packages.items()]
    return before + "\n".join(sorted(lines, key=lambda line: ("leasekeeper/" not in line, line))) + "\n\n## " + after


def main(arguments: Sequence[str], folder: Path = REFERENCE) -> int:
    """Write the pages that differ; with --check, only name them."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m tools.docs [--check]", file=sys.stderr)
        return 2
    old = differing(folder)
    if arguments:
        for name in old:
            print(f"{folder.name}/{name} is old: run `make docs`", file=sys.stderr)
        return 1 if old else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in old:
        (folder / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"wrote {folder.name}/{name}")
    if folder == REFERENCE and (listed := modules()) != ARCHITECTURE.read_text(encoding="utf-8"):
        ARCHITECTURE.write_text(listed, encoding="utf-8")
        print(f"wrote {ARCHITECTURE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
