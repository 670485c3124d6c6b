"""What `doctor` advises, in sentences. What to type for it is the command line's: `leasekeeper.cli.hints`."""

from collections.abc import Mapping
from typing import Final

from leasekeeper.core.doctor.findings import Advice, Verdict

ADVICE: Final[Mapping[Advice, str]] = {
    Advice.APPLY_FLEET: "Make it by applying a fleet.",
    Advice.CHECK_STORE: "Check the store's URL (LEASEKEEPER_STORE), and that the server or the disk is there.",
    Advice.CORRECT_SETTING: "Correct it.",
    Advice.MIGRATE_STORE: "Migrate the store.",
    Advice.UPGRADE_PROGRAM: "Upgrade Leasekeeper on this machine.",
    Advice.SET_CLOCKS: "Set both by NTP (chrony, systemd-timesyncd). Leases use the store's clock alone; times in "
    "logs, in the signatures of webhooks and in 'run_at' are wrong.",
    Advice.RUN_SWEEPER: "Let a sweeper run somewhere: workers alone do not sweep.",
    Advice.START_WORKER: "Start a worker.",
    Advice.BRING_WORKERS_TO_ONE_VERSION: "Bring all of them to one version.",
    Advice.BRING_BOTH_TO_ONE_VERSION: "Bring both to one version.",
    Advice.BRING_BROWSERS_TO_ONE_VERSION: "Bring them to one version: a profile that a newer browser has opened is "
    "refused by an older one.",
    Advice.READ_LOGS: "Read the log of each: it was killed, or it cannot reach the store.",
    Advice.CORRECT_WEBHOOK_SETTINGS: "Correct LEASEKEEPER_WEBHOOK_SECRET or LEASEKEEPER_WEBHOOK_NETWORKS.",
    Advice.RUN_SENDING_SWEEPER: "Let a sweeper run: it sends webhooks.",
    Advice.SET_WEBHOOK_SECRET: "Set LEASEKEEPER_WEBHOOK_SECRET.",
    Advice.SET_SWEEPERS_WEBHOOK_SECRET: "Set LEASEKEEPER_WEBHOOK_SECRET where the sweeper runs.",
    Advice.REPLAY_WEBHOOKS: "Repair the receivers, then replay these messages.",
    Advice.START_LAUNCHER: "Start it on this machine, or run doctor where it runs. Check url and token.",
    Advice.FIT_LIMITS_TO_PLAN: "Set max_running of the launcher, and the limit of its pool, to what the plan allows.",
    Advice.CHOOSE_DATA_DIR: "Set LEASEKEEPER_DATA_DIR to a folder that you may write to.",
    Advice.RUN_AS_OWNER: "Run workers as its owner, or set LEASEKEEPER_DATA_DIR to a folder of this user.",
    Advice.RESTRICT_DATA_DIR: "Let only its owner read and write it.",
    Advice.CHECK_FOLDER: "Check its owner, mode and file system.",
    Advice.MOVE_STORE: "Move it to a local disk, or use PostgreSQL.",
    Advice.USE_LOCAL_DISK: "Use a local disk. If workers share profiles there, its file locks have to work between "
    "machines.",
    Advice.USE_DISK: "Use a disk.",
    Advice.MAKE_ROOM: "Make room, or keep less evidence (LEASEKEEPER_KEEP_EVIDENCE, LEASEKEEPER_KEEP_EVIDENCE_MB). A "
    "browser profile needs up to 100 MB, and a run whose evidence cannot be saved sends its profile to review.",
    Advice.CHECK_DISK: "Check its owner, mode, free space and quota.",
    Advice.USE_FASTER_DISK: "Use a faster disk: every claim, renewal and settlement waits for one.",
    Advice.CHECK_EVIDENCE: "Check the setting evidence, its credentials and the network: a worker claims nothing "
    "meanwhile.",
    Advice.CHECK_PROFILE_STORE: "Check the place, its credentials and the key: profiles stay on their machines, "
    "unsaved, meanwhile.",
    Advice.SET_SECRET_KEY: "Set LEASEKEEPER_SECRET_KEY on every machine with workers: whoever reads the place is "
    "logged in.",
    Advice.SET_EARLIER_KEY: "Set it on every machine, behind the current key, until no snapshot needs it.",
    Advice.INSTALL_BROWSER: "Install one, or set LEASEKEEPER_BROWSER to the path of Chromium or Chrome.",
    Advice.START_BROWSER_BY_HAND: "Start the browser by hand as the same user. Common causes: missing libraries, a "
    "data directory mounted noexec, no user namespaces for the sandbox.",
    Advice.MAKE_CLOSE_CLEAN: "Every run would leave its profile stale. Raise LEASEKEEPER_CLOSE_AFTER, or see what "
    "ends the browser.",
    Advice.START_FEWER_AT_ONCE: "The machine is overloaded: lower the worker's concurrency or "
    "LEASEKEEPER_LAUNCH_TOGETHER.",
    Advice.RUN_AS_ORDINARY_USER: "Run workers as an ordinary user.",
    Advice.INSTALL_FONTS: "Install fonts.",
    Advice.INSTALL_FONTS_FOR_SCRIPTS: "Install fonts for these scripts.",
    Advice.SITES_NOTICE_FONTS: "Sites may also notice.",
    Advice.START_DISPLAY: "Start it (Xvfb, a desktop), or unset DISPLAY and WAYLAND_DISPLAY: then visible jobs wait "
    "for a worker.",
    Advice.SET_DISPLAY: "Set DISPLAY, for instance to an Xvfb.",
    Advice.DECLARE_PROFILES: "Declare a profile for each in fleet.yaml: jobs for them are refused.",
    Advice.NAME_WORKERS: "Give every worker a name of its own, so that people can tell them apart.",
    Advice.GIVE_RENEWAL_TIME: "Raise LEASEKEEPER_HOLDER_STOPS_AFTER and LEASEKEEPER_LEASE_TTL, or lower "
    "LEASEKEEPER_RENEW_EVERY.",
    Advice.FIND_SILENT_HOLDERS: "Find out why: its worker is stuck, or cannot reach the store.",
    Advice.DECIDE_REVIEWS: "Decide them: until then these profiles and jobs wait.",
    Advice.MAKE_ROOM_FOR_EVIDENCE: "Make room in the data directory; see the checks disk_space and disk_sync.",
    Advice.KEEP_EVENTS_LONGER: "Set LEASEKEEPER_KEEP_EVENTS to at least LEASEKEEPER_KEEP_JOBS.",
    Advice.USE_SHARING: "Submit read-only jobs with mode 'shared', or set max_active_runs to 1.",
    Advice.REVIEW_MANUAL_USE: "It is recorded, and the next job goes on. Set 'review' where a person should look "
    "first.",
    Advice.GIVE_REASONS: "Let tasks say why they stop (raise Fail) and register detectors for login pages and "
    "security prompts.",
    Advice.ROUTE_BY_ACCOUNT: "Set 'routing: account' where the site would notice that.",
    Advice.FIND_OTHER_PROGRAM: "Find that program. A profile opened by hand under a lease conflicts with nobody.",
    Advice.FIND_LOSING_MACHINES: "Find out which machines sleep, are killed or cannot reach the store.",
    Advice.SET_PROBE: "Set LEASEKEEPER_PROBE_URL.",
    Advice.EXPECT_ENVIRONMENT: "Submit them with expected_proxy_region, expected_language or expected_timezone.",
    Advice.RETRY_FEWER_REASONS: "Take these out of 'retry.reasons': a retry makes such a state worse.",
    Advice.REPORT_BUG: "Report this: it is a bug in Leasekeeper.",
    Advice.KEEP_JOBS_LONGER: "Raise LEASEKEEPER_KEEP_JOBS: problems are noticed later than that.",
}


def todo_text(verdict: Verdict) -> str:
    """What has to be done; empty if nothing has to."""
    return " ".join(ADVICE[each] for each in verdict.advice)
