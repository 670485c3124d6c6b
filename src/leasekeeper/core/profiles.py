"""Profiles: what is configured, what state each is in, and which moves between states exist.

`Profile` is configuration (fleet.yaml writes it); `Lane` is the running side (the runtime writes it):
the state, the last fencing token, and the head of the profile's queue. TRANSITIONS is the whole state
machine as data; the docs' diagram is generated from it. Knows nothing of leases' clocks or of stores.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from leasekeeper.core.accounts import BanStatus
from leasekeeper.core.browsers import LOCAL
from leasekeeper.core.ids import AccountId, JobId, LauncherId, ProfileId, ProxyId, Token
from leasekeeper.core.snapshots import KEEP_SNAPSHOTS
from leasekeeper.errors import IllegalTransition


class ProfileState(StrEnum):
    AVAILABLE = "available"
    LEASED = "leased"
    STALE = "stale"
    REVIEW_REQUIRED = "review_required"
    QUARANTINED = "quarantined"
    DISABLED = "disabled"


class ReleasePolicy(StrEnum):
    """What becomes of a profile whose owner vanished. From lenient to strict."""

    RECOVER = "recover"
    RESTORE = "restore"
    REVIEW = "review"
    QUARANTINE = "quarantine"


_STRICTNESS: Final = {policy: place for place, policy in enumerate(ReleasePolicy)}


def stricter(own: ReleasePolicy, wanted: ReleasePolicy | None) -> ReleasePolicy:
    """The stricter of two policies; `own` if `wanted` is None."""
    return own if wanted is None else max(own, wanted, key=_STRICTNESS.__getitem__)


class ManualUse(StrEnum):
    """What to do when a profile was touched outside a lease."""

    ACCEPT = "accept"
    REVIEW = "review"


class Cause(StrEnum):
    """Why a profile may change its state."""

    GRANTED = "granted"
    INSPECTED = "inspected"
    CLEAN_RELEASE = "clean_release"
    EXPIRED = "expired"
    NOT_PROVEN_CLOSED = "not_proven_closed"
    NEEDS_PERSON = "needs_person"
    EVIDENCE_NOT_SAVED = "evidence_not_saved"
    QUARANTINE_TRIGGER = "quarantine_trigger"
    RESOLVED = "resolved"
    DECIDED = "decided"
    DRAINED = "drained"


class StateCause(StrEnum):
    """What put a profile into its state, as a code. `Cause` is the rule that allowed the move; this is the fact.

    `state_reason` says the same as a sentence, and `state_data` has the facts that STATE_DATA lists. A new cause needs
    a new schema number: programs of an earlier schema cannot read it.
    """

    ADDED = "added"
    GRANTED = "granted"
    CLEAN_RELEASE = "clean_release"
    HANDED_OVER = "handed_over"
    GIVEN_BACK = "given_back"
    LEASE_EXPIRED = "lease_expired"
    LEASE_REVOKED = "lease_revoked"
    NOT_PROVEN_CLOSED = "not_proven_closed"
    LAUNCHER_SILENT = "launcher_silent"
    OPEN_SECTION = "open_section"
    FINAL_URL_UNKNOWN = "final_url_unknown"
    PROXY_CHANGED = "proxy_changed"
    SECURITY_PROMPT = "security_prompt"
    RUN_STOPPED = "run_stopped"
    DIRECTORY_EMPTY = "directory_empty"
    EVIDENCE_NOT_SAVED = "evidence_not_saved"
    STORE_LOST_WRITES = "store_lost_writes"
    RELEASE_POLICY = "release_policy"
    RECOVERED = "recovered"
    NOT_RECOVERED = "not_recovered"
    RESTORED = "restored"
    NOT_RESTORED = "not_restored"
    DECIDED = "decided"
    LEASE_FORGOTTEN = "lease_forgotten"


class Doubt(StrEnum):
    """Why a profile whose holder was lost does not go back into rotation by itself."""

    NO_SAFE_STEP = "no_safe_step"
    FINAL_URL_UNKNOWN = "final_url_unknown"
    BROWSER_NOT_DEAD = "browser_not_dead"
    PROXY_REPLACED = "proxy_replaced"
    NO_GOOD_SNAPSHOT = "no_good_snapshot"


_ENDING: Final = ("ending",)
_STOPPED: Final = ("stop_reason", "clause")
_IN_SECTION: Final = ("section", "safe_step", "seconds")

# What `state_data` may have. `ending` is there if nobody reported the run's end: how its lease ended (`expired`,
# `revoked`, or `released` with a browser that was not proven closed). `clause` is the one of the clean-close proof that
# failed. `seconds` have passed between the last safe step and the end. `doubts` are codes of `Doubt`.
STATE_DATA: Final[Mapping[StateCause, tuple[str, ...]]] = {
    StateCause.ADDED: (),
    StateCause.GRANTED: (),
    StateCause.CLEAN_RELEASE: ("stop_reason",),
    StateCause.HANDED_OVER: ("stop_reason",),
    StateCause.GIVEN_BACK: (),
    StateCause.LEASE_EXPIRED: ("silent_seconds",),
    StateCause.LEASE_REVOKED: ("silent_seconds",),
    StateCause.NOT_PROVEN_CLOSED: _STOPPED,
    StateCause.LAUNCHER_SILENT: ("launcher_id", "problem", *_ENDING),
    StateCause.OPEN_SECTION: (*_IN_SECTION, *_STOPPED, *_ENDING),
    StateCause.FINAL_URL_UNKNOWN: _STOPPED,
    StateCause.PROXY_CHANGED: (*_STOPPED, *_ENDING),
    StateCause.SECURITY_PROMPT: _STOPPED,
    StateCause.RUN_STOPPED: _STOPPED,
    StateCause.DIRECTORY_EMPTY: _STOPPED,
    StateCause.EVIDENCE_NOT_SAVED: _STOPPED,
    StateCause.STORE_LOST_WRITES: ("stop_reason", *_ENDING),
    StateCause.RELEASE_POLICY: ("policy", *_ENDING),
    StateCause.RECOVERED: ("safe_step", *_ENDING),
    StateCause.NOT_RECOVERED: ("doubts", *_ENDING),
    StateCause.RESTORED: ("token", *_ENDING),
    StateCause.NOT_RESTORED: ("doubts", *_ENDING),
    StateCause.DECIDED: ("action", "actor"),
    StateCause.LEASE_FORGOTTEN: ("lease_id", "run_id"),
}

_NO_DATA: Final[Mapping[str, object]] = {}


class Because(NamedTuple):
    """Why a profile is in a state, or will be: a sentence for people, a code with its data for programs. Records of an
    earlier schema have no code."""

    reason: str
    cause: StateCause | None
    data: Mapping[str, object] = _NO_DATA


_S = ProfileState

TRANSITIONS: Final[Mapping[tuple[ProfileState, ProfileState], frozenset[Cause]]] = {
    (_S.AVAILABLE, _S.LEASED): frozenset({Cause.GRANTED}),
    (_S.LEASED, _S.AVAILABLE): frozenset({Cause.CLEAN_RELEASE}),
    (_S.LEASED, _S.STALE): frozenset({Cause.EXPIRED, Cause.NOT_PROVEN_CLOSED}),
    (_S.LEASED, _S.REVIEW_REQUIRED): frozenset({Cause.NEEDS_PERSON, Cause.EVIDENCE_NOT_SAVED, Cause.DRAINED}),
    (_S.LEASED, _S.QUARANTINED): frozenset({Cause.QUARANTINE_TRIGGER, Cause.DRAINED}),
    (_S.LEASED, _S.DISABLED): frozenset({Cause.DRAINED}),
    (_S.STALE, _S.QUARANTINED): frozenset({Cause.RESOLVED, Cause.DECIDED}),
    (_S.STALE, _S.REVIEW_REQUIRED): frozenset({Cause.RESOLVED, Cause.DECIDED}),
    (_S.STALE, _S.AVAILABLE): frozenset({Cause.RESOLVED}),
    (_S.STALE, _S.DISABLED): frozenset({Cause.DECIDED, Cause.DRAINED}),
    (_S.REVIEW_REQUIRED, _S.AVAILABLE): frozenset({Cause.DECIDED}),
    (_S.REVIEW_REQUIRED, _S.QUARANTINED): frozenset({Cause.DECIDED}),
    (_S.REVIEW_REQUIRED, _S.DISABLED): frozenset({Cause.DECIDED}),
    (_S.QUARANTINED, _S.AVAILABLE): frozenset({Cause.DECIDED}),
    (_S.QUARANTINED, _S.REVIEW_REQUIRED): frozenset({Cause.DECIDED}),
    (_S.QUARANTINED, _S.DISABLED): frozenset({Cause.DECIDED}),
    (_S.AVAILABLE, _S.REVIEW_REQUIRED): frozenset({Cause.DECIDED}),
    (_S.AVAILABLE, _S.QUARANTINED): frozenset({Cause.DECIDED}),
    (_S.AVAILABLE, _S.DISABLED): frozenset({Cause.DECIDED}),
    (_S.REVIEW_REQUIRED, _S.LEASED): frozenset({Cause.INSPECTED}),
    (_S.QUARANTINED, _S.LEASED): frozenset({Cause.INSPECTED}),
    (_S.DISABLED, _S.LEASED): frozenset({Cause.INSPECTED}),
    (_S.DISABLED, _S.AVAILABLE): frozenset({Cause.DECIDED}),
    (_S.DISABLED, _S.REVIEW_REQUIRED): frozenset({Cause.DECIDED}),
}


# Out of rotation, but a person may look inside.
INSPECTABLE: Final = frozenset(before for (before, _), causes in TRANSITIONS.items() if Cause.INSPECTED in causes)


def check_transition(profile_id: ProfileId, before: ProfileState, after: ProfileState, cause: Cause) -> None:
    """Raise IllegalTransition unless the table has this move for this cause."""
    if cause not in TRANSITIONS.get((before, after), frozenset()):
        legal = sorted({to.value for (frm, to) in TRANSITIONS if frm is before})
        raise IllegalTransition(
            f"profile {profile_id} is {before} and cannot become {after} ({cause}); "
            f"from {before} it can become: {', '.join(legal)}",
            profile_id=profile_id,
            state=before,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One managed browser environment of one account, as configured.

    `keep_snapshots` is how many of its newest snapshots are kept (see `core.snapshots`). Above `max_size_mb` its
    directory is too large: an event says so.
    """

    profile_id: ProfileId
    account_id: AccountId
    pool: str = "default"
    tier: str | None = None
    driver: str = LOCAL
    user_data_dir: str | None = None
    proxy_id: ProxyId | None = None
    launcher_id: LauncherId | None = None
    launcher_profile: str | None = None
    language: str | None = None
    timezone: str | None = None
    window: str | None = None
    max_active_runs: int = 1
    disposable: bool = False
    warm: bool = True
    record: bool = False
    release_policy: ReleasePolicy = ReleasePolicy.QUARANTINE
    manual_use: ManualUse = ManualUse.REVIEW
    keep_snapshots: int = KEEP_SNAPSHOTS
    max_size_mb: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The running side of one profile: its state, its last token, and the head of its queue.

    `blocked_by` is why the lane cannot run now (None: it can); `waits_on` is the routing key it waits for.
    `verdict` is where the profile goes when the last of several sharers ends; `drain` is where a person sends it when
    its last lease ends (None: nowhere), with `drain_reason`. While a person looks inside a profile that is out of
    rotation, `drain` is the state that it was in. Each reason has its code and data beside it: no code means
    an earlier schema, or no reason. `clean` says whether the last ending was clean. `version`
    counts what a person decides on; `revision` counts every write, so that a store without row locks can compare and
    set. `tier` is the profile's own, for lists.
    `home` is the machine that has its newest directory. `reserved_for` is the machine whose workers alone are given its
    jobs now (see `core.homes`). `snapshot` is the token of its newest snapshot. It is `saved` if that is its newest
    state, else `unsaved_reason` may say why. `size_bytes` is its directory's size when that was last measured.
    """

    profile_id: ProfileId
    account_id: AccountId
    state: ProfileState = ProfileState.AVAILABLE
    state_reason: str = ""
    state_cause: StateCause | None = None
    state_data: Mapping[str, object] = field(default_factory=dict)
    state_at: datetime
    token: Token = Token(0)
    version: int = 1
    clean: bool = True
    drain: ProfileState | None = None
    drain_reason: str = ""
    drain_cause: StateCause | None = None
    drain_data: Mapping[str, object] = field(default_factory=dict)
    tier: str | None = None
    ban_status: BanStatus = BanStatus.NONE
    verdict: ProfileState | None = None
    verdict_reason: str = ""
    verdict_cause: StateCause | None = None
    verdict_data: Mapping[str, object] = field(default_factory=dict)
    engine: int | None = None
    head_job_id: JobId | None = None
    head_pool: str | None = None
    head_task: str | None = None
    head_priority: int = 0
    head_shared: bool = False
    waiting_at: datetime
    blocked_by: str | None = None
    waits_on: str | None = None
    home: str = ""
    reserved_for: str = ""
    snapshot: Token | None = None
    saved: bool = False
    unsaved_reason: str = ""
    size_bytes: int | None = None
    revision: int = 0


def because(lane: Lane) -> Because:
    """Why the profile is in its state."""
    return Because(lane.state_reason, lane.state_cause, lane.state_data)


def said_of_state(lane: Lane) -> Mapping[str, object]:
    """What an event records about the state that it leads to: the cause, and its data if there is any."""
    return {"state_cause": lane.state_cause, **({"state_data": lane.state_data} if lane.state_data else {})}


_SEVERITY: Final = {ProfileState.REVIEW_REQUIRED: 1, ProfileState.QUARANTINED: 2}


def worse(a: ProfileState | None, b: ProfileState | None) -> ProfileState | None:
    """The stricter of two verdicts on one profile; None is 'nothing against it'."""
    if a is None or b is None:
        return a or b
    return max(a, b, key=lambda state: _SEVERITY.get(state, 0))


def settle_state(
    *, live: int, unresolved: int, verdict: ProfileState | None, drain: ProfileState | None
) -> ProfileState:
    """The state that the facts give a profile after one of its leases ended or was resolved.

    A profile with sharers stays leased until the last one ends; then an unresolved ending makes it
    stale, a person's `disable` takes it out, the stricter of a verdict and a drain stands, and only otherwise it is
    available.
    """
    if live:
        return ProfileState.LEASED
    if unresolved:
        return ProfileState.STALE
    if drain is ProfileState.DISABLED:
        return drain
    return worse(verdict, drain) or ProfileState.AVAILABLE
