"""Why a direct lease of a profile is refused now: what the profile waits for, and until when."""

from datetime import datetime

from leasekeeper.core.failures import Reason
from leasekeeper.core.lanes import LaneFacts
from leasekeeper.core.leases import Lease
from leasekeeper.core.pauses import Pause
from leasekeeper.core.readiness import Blocked
from leasekeeper.wording import UNBLOCKED_BY, at_home, pause_text

_HOLDER_ENDS = "it is free when the holder releases it; if the holder is dead, the first request after that resolves it"


def busy_text(facts: LaneFacts, gate: Blocked, until: datetime | None, holder: Lease | None = None) -> str:
    """The message of `ProfileBusy`. `until` is when the lease in the way expires, or when its ending may be resolved;
    `holder` is that lease, which may be of another profile of the account."""
    lane, live = facts.lane, facts.live
    if gate is Blocked.HOME:
        return f"profile {lane.profile_id} is not given to this machine: {gate}; {at_home(lane.profile_id, lane.home)}"
    at = f"{until:%Y-%m-%d %H:%M:%S} UTC" if until else ""
    step = UNBLOCKED_BY[gate]
    if live:
        about = f", held by {live[0].worker_id} (run {live[0].run_id}) until {at} unless renewed"
        step = _HOLDER_ENDS if gate is Blocked.PROFILE_LEASE else step
    elif holder is not None and holder.profile_id != lane.profile_id:
        about = (
            f", but its account {lane.account_id} runs one profile at a time, and {holder.worker_id} has "
            f"{holder.profile_id} (run {holder.run_id}) until {at} unless renewed"
        )
    else:
        about = f": {lane.state_reason}" if lane.state_reason else ""
        lost = [lease for lease in facts.open if lease.unresolved]
        if lost:
            step = f"the first request or sweep after {at} resolves it by its release policy ({lost[0].release_policy})"
    return f"profile {lane.profile_id} is {lane.state}{about}: {gate}; {step}"


def older_browser_text(profile_id: str, newest: int | None, engine: int | None) -> str:
    """The message of `ProfileBusy` for a browser that is older than the one which opened the profile last."""
    return (
        f"profile {profile_id} was last opened by browser version {newest}, this one is {engine}: "
        f"{Reason.PROFILE_NEWER_THAN_BROWSER}; upgrade the browser"
    )


def paused_text(profile_id: str, pause: Pause) -> str:
    """The message of `ProfileBusy` while a person has paused the pool, or everything."""
    step = UNBLOCKED_BY[Blocked.PAUSE]
    return f"profile {profile_id} is not given to anybody: {pause_text(pause)}: {Blocked.PAUSE}; {step}"
