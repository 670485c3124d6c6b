"""What the reference model knows at one moment, and what may start then. Nothing here changes anything."""

from datetime import datetime, timedelta

from leasekeeper.core.accounts import Account, Limit, Proxy
from leasekeeper.core.profiles import Profile
from leasekeeper.core.workers import WorkerReport
from tests.model.records import Held, Side, Work

WORKER_TTL = timedelta(seconds=90)


class Facts:
    """Everything that there is, at `now`."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.accounts: dict[str, Account] = {}
        self.profiles: dict[str, Profile] = {}
        self.proxies: dict[str, Proxy] = {}
        self.limits: dict[str, Limit] = {}
        self.sides: dict[str, Side] = {}
        self.jobs: dict[str, Work] = {}
        self.leases: list[Held] = []
        self.keys: dict[str, Work] = {}
        self.known: set[tuple[str, str]] = set()
        self.workers: dict[str, tuple[WorkerReport, datetime]] = {}
        self.paused: set[str] = set()
        self.account_versions: dict[str, int] = {}
        self.expiry_resumes = now

    def live(self, profile: str) -> list[Held]:
        return [held for held in self.leases if held.profile == profile and held.ended is None]

    def unresolved(self, profile: str | None = None) -> list[Held]:
        return [held for held in self.leases if held.unresolved and profile in (None, held.profile)]

    def lane(self, profile: str) -> list[Work]:
        waiting = [job for job in self.jobs.values() if job.profile == profile and job.state == "queued"]
        return sorted(waiting, key=lambda job: job.order)

    def key(self, profile: str, task: str | None, shared: bool) -> str:
        account = self.profiles[profile].account_id
        match self.accounts[account].routing:
            case "profile":
                return f"profile:{profile}"
            case "account_task" if shared and task is not None:
                return f"account:{account}:task:{task}"
            case _:
                return f"account:{account}"

    def key_taken(self, key: str) -> bool:
        """Wider keys only: a profile's own key is what `joinable` answers for."""
        if not key.startswith("account:"):
            return False
        account = key.split(":")[1]
        whole = self.accounts[account].routing == "account"

        def counts(held: Held) -> bool:
            earlier = not held.key.startswith("account:") and key == f"account:{account}"
            return held.key == key or (held.account == account and (whole or earlier))

        return any(held.ended is None and counts(held) for held in self.leases)

    def room(self, pool: str) -> bool:
        limit = self.limits.get(pool)
        return limit is None or sum(held.pool == pool and held.ended is None for held in self.leases) < limit.max_leases

    def joinable(self, profile: str, shared: bool, *, apart_from: Work | None = None) -> bool:
        """Whether one more run of this mode may start in the profile now; or could, but for one job's own runs."""
        config, side = self.profiles[profile], self.sides[profile]
        live = [held for held in self.live(profile) if apart_from is None or held.job is not apart_from]
        lost = [held for held in self.unresolved(profile) if apart_from is None or held.job is not apart_from]
        if side.state == "available":
            return True
        if side.state != "leased" or side.verdict or side.drain or lost:
            return False
        all_share = config.disposable or (shared and all(held.shared for held in live))
        return all_share and len(live) < config.max_active_runs

    def lane_block(self, profile: str) -> str | None:
        """What holds the whole lane, as its jobs show it; limits that are shared with other profiles apart."""
        side, queue = self.sides[profile], self.lane(profile)
        if self.profiles[profile].account_id in self.paused:
            return "blocked_by_account_pause"
        if side.state == "review_required":
            return "blocked_by_review_required"
        if side.state in ("stale", "quarantined", "disabled"):
            return "blocked_by_profile_state"
        if not self.joinable(profile, bool(queue) and queue[0].shared):
            return "blocked_by_profile_lease"
        return None

    def job_blocks(self, job: Work) -> set[str]:
        """Everything about the job itself that stops it."""
        profile, spec = self.profiles[job.profile], job.spec
        proxy = self.proxies[profile.proxy_id] if profile.proxy_id else None
        found = set()
        if spec.risk_level == "review_required" and not job.approved:
            found.add("blocked_by_approval")
        if spec.proxy_id is not None and spec.proxy_id != profile.proxy_id:
            found.add("blocked_by_proxy_mismatch")
        if spec.expected_proxy_region is not None and spec.expected_proxy_region != (proxy and proxy.region):
            found.add("blocked_by_proxy_mismatch")
        if spec.expected_language is not None and spec.expected_language != profile.language:
            found.add("blocked_by_environment_mismatch")
        if spec.expected_timezone is not None and spec.expected_timezone != profile.timezone:
            found.add("blocked_by_environment_mismatch")
        if (job.pool, spec.task) not in self.known:
            found.add("blocked_by_no_worker")
        return found

    def offered(self, pool: str, task: str) -> bool:
        return any(
            said.pool == pool and task in said.tasks and not said.stopping and at > self.now - WORKER_TTL
            for said, at in self.workers.values()
        )

    def shown(self, job: Work, parked: bool) -> tuple[str, set[str]]:
        """The state that people see, and the reasons that may stand beside it.

        `parked`: the store says that the lane waits for an account's key. It may say so until somebody looks.
        """
        if job.state == "blocked":
            return "blocked", self.job_blocks(job)
        if job.state != "queued":
            return job.state, set()
        reason = self.lane_block(job.profile) or ("blocked_by_profile_lease" if parked else None)
        if reason is None and not self.room(job.pool):
            reason = "blocked_by_capacity"
        if reason is None and not self.offered(job.pool, job.spec.task):
            reason = "blocked_by_no_worker"
        return ("blocked", {reason}) if reason else ("queued", set())
