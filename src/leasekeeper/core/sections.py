"""Safe steps and mutating sections: how a holder's write changes its lease. Pure.

`leases.may_have_been_done` says what follows if the holder vanishes in a section, or after one.
"""

from datetime import datetime

from leasekeeper.conflict_reasons import ConflictReason
from leasekeeper.core.leases import Lease
from leasekeeper.core.records import evolve
from leasekeeper.errors import Conflict


def step_reached(lease: Lease, step: str, url: str | None, now: datetime) -> Lease:
    """The lease after a safe step: what was done in earlier sections is known to be done."""
    return evolve(lease, last_safe_step=step, last_safe_at=now, last_url=url or lease.last_url, left_section=None)


def section_entered(lease: Lease, name: str, *, idempotent: bool, disposable: bool, now: datetime) -> Lease:
    """The lease inside a section. Raises Conflict if another one is open: sections do not nest.

    Also raises Conflict if the run shares its profile: it must not change it, unless the profile is `disposable`.
    """
    if lease.open_section is not None:
        raise Conflict(
            f"run {lease.run_id} is inside mutating section {lease.open_section}: leave it before {name}",
            cause=ConflictReason.SECTION_OPEN,
            run_id=lease.run_id,
            section=lease.open_section,
        )
    if lease.shared and not disposable:
        raise Conflict(
            f"run {lease.run_id} shares profile {lease.profile_id}: a change needs it alone",
            cause=ConflictReason.PROFILE_SHARED,
            run_id=lease.run_id,
            profile_id=lease.profile_id,
        )
    return evolve(lease, open_section=name, section_at=now, section_idempotent=idempotent)


def section_left(lease: Lease, name: str) -> Lease:
    """The lease after a section. An idempotent section is not remembered. Raises Conflict unless
    this section is open."""
    if lease.open_section != name:
        raise Conflict(
            f"run {lease.run_id} is inside {lease.open_section or 'no section'}, not inside {name}",
            cause=ConflictReason.SECTION_NOT_OPEN,
            run_id=lease.run_id,
            section=lease.open_section,
        )
    left = lease.left_section if lease.section_idempotent else name
    return evolve(lease, open_section=None, section_at=None, section_idempotent=False, left_section=left)
