"""What to type next: hints of the command line, by the code of an error or of a decision.

The only place outside the help texts that suggests commands.
"""

from shlex import quote
from typing import TYPE_CHECKING, Final

from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.doctor.findings import Step
from leasekeeper.core.profiles import INSPECTABLE
from leasekeeper.errors import LeasekeeperError, NotFound, PartlyDone, ProfileBusy

if TYPE_CHECKING:
    from leasekeeper.core.doctor.findings import Verdict
    from leasekeeper.core.readiness import Blocked
    from leasekeeper.core.why_answer import Possible, Why

# An error's code → what to type.
HINTS: Final = {
    "UNKNOWN_ACCOUNT": "put a fleet file into force: leasekeeper apply FLEET_FILE; list what there is: "
    "leasekeeper accounts",
    "UNKNOWN_PROFILE": "list what there is: leasekeeper profiles",
    "AMBIGUOUS_PROFILE": "name it: leasekeeper submit TASK --profile ID",
    "UNKNOWN_TASK": "see what workers offer: leasekeeper workers",
    "WEBHOOK_SECRET_NEEDED": "make one: leasekeeper webhooks secret",
    "STORE_NOT_MADE": "make it with 'leasekeeper apply FLEET_FILE', 'leasekeeper up' or 'leasekeeper db migrate', or "
    "name another with --store",
    "SECRET_KEY_MISSING": "make one: leasekeeper secrets key",
    "SECRET_NOT_FOUND": "store it: leasekeeper secrets set NAME",
    "UNAUTHENTICATED": "set LEASEKEEPER_TOKEN; an admin makes one: leasekeeper tokens create NAME --scope SCOPE",
    "TOKEN_EXPIRED": "make another: leasekeeper tokens create NAME --scope SCOPE",
    "STORE_NOT_DURABLE": "set them in redis.conf, or at once by CONFIG SET and CONFIG REWRITE; or accept the loss with "
    "?durability=none in the store's URL",
    "NO_PLAYWRIGHT": "pip install 'leasekeeper[browser]'",
    "SCHEMA_TOO_OLD": "bring it up to date: leasekeeper db migrate",
}

# A step that `doctor` suggests → what to type; {path} and the like are the finding's own facts.
_STEPS: Final = {
    Step.APPLY_FLEET: "leasekeeper apply FLEET_FILE",
    Step.MIGRATE_STORE: "leasekeeper db migrate",
    Step.START_SWEEPER: "leasekeeper up TASKS  # or 'leasekeeper sweep' every minute",
    Step.START_WORKER: "leasekeeper up TASKS  # or 'leasekeeper worker TASKS' beside an 'up' elsewhere",
    Step.MAKE_WEBHOOK_SECRET: "leasekeeper webhooks secret",
    Step.LIST_EXHAUSTED_WEBHOOKS: "leasekeeper webhooks --state exhausted  # 'webhooks replay ID' sends one again",
    Step.LIST_SETTINGS: "leasekeeper settings",
    Step.LIST_REVIEWS: "leasekeeper reviews",
    Step.LIST_FAILED_RUNS: "leasekeeper runs --result failed",
    Step.EXPLAIN_PROFILE: "leasekeeper why profile ID",
    Step.OPEN_PROFILE: "leasekeeper open PROFILE",
    Step.RESTRICT_DATA_DIR: "chmod 700 {path}",
    Step.INSTALL_BROWSER: "playwright install chromium  # or your system's package chromium",
    Step.INSTALL_BROWSER_LIBRARIES: "playwright install-deps chromium",
    Step.INSTALL_FONTS: "apt install fonts-noto-core fonts-noto-cjk fonts-noto-color-emoji  # on Debian and Ubuntu",
    Step.START_FEWER_AT_ONCE: "leasekeeper worker TASKS --concurrency 1",
    Step.NAME_WORKERS: "leasekeeper worker TASKS --name NAME",
}

# The command that lists each kind of record.
LISTS: Final = {
    "account": "accounts",
    "profile": "profiles",
    "job": "jobs",
    "lease": "leases",
    "run": "runs",
    "review": "reviews",
    "worker": "workers",
    "webhook": "webhooks",
    "endpoint": "webhooks endpoints",
    "token": "tokens",
    "secret": "secrets",
    "schedule": "schedules",
    "proxy": "proxies",
    "launcher": "launchers",
    "pause": "pause",
    "pool": "workers",
}

# Dead jobs have a noun of their own.
_NOUNS: Final = {
    Target.PROFILE: "profiles",
    Target.JOB: "jobs",
    Target.ACCOUNT: "accounts",
    Target.LEASE: "leases",
    Target.PROXY: "proxies",
}
_DEAD: Final = (Action.RETRY, Action.DROP)


def hint_of(error: LeasekeeperError) -> str | None:
    """What to type after this error, if a command helps."""
    match error:
        case NotFound(what=what) if what in LISTS:
            return f"list what there is: leasekeeper {LISTS[what]}"
        case ProfileBusy(profile_id=profile_id, state=state) if profile_id is not None:
            if state in INSPECTABLE:
                inside = f"{open_command(profile_id)}, or to log in: leasekeeper login {profile_id}"
                return f"look inside: {inside}; then decide: leasekeeper why profile {profile_id}"
            return f"see why, and what to do: leasekeeper why profile {profile_id}"
        case PartlyDone(stopped_by=code) if code is not None:
            return HINTS.get(code)
    return HINTS.get(error.code)


def steps_of(verdict: "Verdict") -> list[str]:
    """What to type for each step that a check of `doctor` suggests."""
    facts = {name: quote(value) for name, value in verdict.facts.items() if isinstance(value, str)}
    return [_STEPS[step].format_map(facts) for step in verdict.steps]


def open_command(profile_id: str) -> str:
    """How a person looks inside a profile."""
    return f"leasekeeper open {profile_id}"


def login_command(profile_id: str) -> str:
    """How a person logs in to a profile."""
    return f"leasekeeper login {profile_id}  # by hand, in a window; then decide"


def command_of(possible: "Possible") -> str:
    """A decision that a person may make, as it is typed."""
    target, action = possible.target, possible.action
    noun = "dlq" if target is Target.JOB and action in _DEAD else _NOUNS.get(target, "webhooks")
    caution = f"  # {possible.section} may have gone through: check the site before" if possible.section else ""
    return f"leasekeeper {noun} {action} {possible.id} --note …{caution}"


def unblocking(reason: "Blocked") -> str | None:
    """The command that ends this reason for waiting, as the reference shows it."""
    from leasekeeper.core.readiness import Blocked

    return {
        Blocked.ACCOUNT_PAUSE: "leasekeeper accounts resume ID",
        Blocked.PAUSE: "leasekeeper resume",
        Blocked.REVIEW_REQUIRED: "leasekeeper reviews",
        Blocked.PROFILE_STATE: "leasekeeper why profile ID",
        Blocked.APPROVAL: "leasekeeper reviews",
        Blocked.NO_WORKER: "leasekeeper up TASKS",
        Blocked.PROXY_MISMATCH: "leasekeeper proxies",
        Blocked.PROXY_UNREACHABLE: "leasekeeper proxies",
        Blocked.HOME: "leasekeeper profiles move ID --to MACHINE",
    }.get(reason)


def commands_for(why: "Why") -> list[str]:
    """Commands for a job or profile: first those that show the evidence, then the possible decisions."""
    from leasekeeper.core.failures import Reason
    from leasekeeper.core.readiness import Blocked
    from leasekeeper.core.why_answer import Next

    shows = [f"leasekeeper runs show {run_id}" for run_id in why.evidence]
    extra = []
    for step in why.next:
        match step.code:
            case Next.SWEEP_ENDS_LEASE | Next.SWEEP_TAKES_JOB:
                extra.append("leasekeeper sweep  # every few seconds, or start 'leasekeeper up', which does it")
            case Next.WEBHOOK_SENT_BY_NOBODY:
                extra.append("leasekeeper sweep  # or 'leasekeeper up', where LEASEKEEPER_WEBHOOK_SECRET is set")
            case Next.UNBLOCKED if step.reason is Blocked.PAUSE:
                extra.append("leasekeeper resume --all --note …  # or what `leasekeeper pause` lists")
            case Next.UNBLOCKED if step.reason is Blocked.HOME:
                extra.append("leasekeeper workers  # which machines have workers")
                extra.append(f"leasekeeper profiles move {why.profile.profile_id} --to MACHINE --note …")
            case Next.UNBLOCKED if step.reason is Blocked.NO_WORKER and why.job is not None:
                extra.append("leasekeeper workers  # who offers what, and when each last reported")
                pool = "" if why.job.pool == "default" else f" --pool {why.job.pool}"
                extra.append(f"leasekeeper up TASKS{pool}  # where your tasks are, e.g. tasks:app")
            case Next.NEXT_JOB_UNBLOCKED:
                extra.append(f"leasekeeper why job {step.job_id}")
            case _:
                pass
    if why.profile.state in INSPECTABLE and any(each.target is Target.PROFILE for each in why.possible):
        if why.last_run is not None and why.last_run.stop_reason == Reason.LOGIN_REQUIRED:
            shows.append(login_command(why.profile.profile_id))
        shows.append(f"{open_command(why.profile.profile_id)}  # look inside; its state stays until you decide")
    return list(dict.fromkeys([*shows, *extra, *map(command_of, why.possible)]))
