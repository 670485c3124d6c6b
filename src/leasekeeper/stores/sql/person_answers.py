"""A person's answer to a run that asked for one. The holder of the lease gets it with the next renewal."""

from leasekeeper.core.control import PersonAnswer, answered, kept_answer
from leasekeeper.core.decisions import Decision
from leasekeeper.core.events import EventType
from leasekeeper.core.leases import lease_key
from leasekeeper.core.records import evolve
from leasekeeper.errors import NotFound
from leasekeeper.ports import Decided
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.heartbeats import close_request, step_row
from leasekeeper.stores.sql.lanes import lock
from leasekeeper.stores.sql.log import Log


def answer(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Store the answer with the lease, and close the review in which the run asked. Raises NotFound if the lease is not
    live."""
    key = lease_key(decision.id)
    now, works, _ = lock(tx, [key[0]] if key is not None else [])
    work = works.get(key[0]) if key is not None else None
    lease = next((each for each in work.live if key is not None and each.token == key[1]), None) if work else None
    if work is None or lease is None:
        raise NotFound(f"there is no live lease {decision.id}", what="lease", id=decision.id)
    said = PersonAnswer(by=decision.actor, note=decision.note, outcome=decision.to or "", at=now)
    lease = evolve(lease, person_answer=kept_answer(answered(lease, said)))
    tx.write("step_runs", [step_row(lease)])
    close_request(tx, lease, now, decision)
    log = Log(ctx, now)
    log.event(
        EventType.HUMAN_ANSWERED,
        lease=lease,
        actor=decision.actor,
        profile_state=work.lane.state,
        data={"outcome": said.outcome, "note": said.note},
    )
    log.save(tx)
    return Decided(state=lease.status, version=0)
