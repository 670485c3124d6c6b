"""Notes in the tables: people write them as decisions, runs under their lease. Only a subject's newest are kept."""

from collections.abc import Mapping

from leasekeeper.core.decisions import Decision, Target
from leasekeeper.core.events import EventType
from leasekeeper.core.ids import AccountId, NoteId, ProfileId
from leasekeeper.core.leases import LeaseRef, Refusal
from leasekeeper.core.notes import MAX_KEPT, Note, NoteAbout, check_text
from leasekeeper.errors import NotFound
from leasekeeper.ports import MAX_IN_BATCH, Decided
from leasekeeper.stores.sql.codec import Row, encoder
from leasekeeper.stores.sql.deciding import check_version
from leasekeeper.stores.sql.engine import Context, Tx
from leasekeeper.stores.sql.heartbeats import live_lease
from leasekeeper.stores.sql.log import Log

_write_note = encoder(Note)


def decide_note(tx: Tx, ctx: Context, decision: Decision) -> Decided:
    """Write a person's note. The record itself does not change, nor do its version and its open review."""
    check_text(decision.note)
    of_profile = decision.target is Target.PROFILE
    if of_profile:
        now, (rows,) = tx.clock(("lane_of", {"profile_id": decision.id}))
    else:
        now, (rows,) = tx.clock(("lock_accounts", {"ids": [decision.id]}))
    if not rows:
        raise NotFound(f"there is no {decision.target} {decision.id}", what=decision.target.value, id=decision.id)
    row = rows[0]
    check_version(decision.target.value, decision, row["version"])
    log = Log(ctx, now)
    note = Note(
        note_id=NoteId(ctx.new_id()),
        about=NoteAbout.PROFILE if of_profile else NoteAbout.ACCOUNT,
        account_id=AccountId(row["account_id"]),
        profile_id=ProfileId(decision.id) if of_profile else None,
        author=decision.actor,
        text=decision.note,
        written_at=now,
    )
    _keep(tx, note)
    log.event(
        EventType.NOTE_ADDED,
        account_id=note.account_id,
        profile_id=note.profile_id,
        actor=note.author,
        data=_data(note),
    )
    log.save(tx)
    return Decided(state=_state(row, of_profile=of_profile), version=row["version"])


def _state(row: Row, *, of_profile: bool) -> str:
    if of_profile:
        return str(row["state"])
    return "paused" if row["paused"] else "active"


def write_note(tx: Tx, ctx: Context, ref: LeaseRef, text: str, about: NoteAbout) -> Refusal | None:
    """Write a run's note. Returns why it was refused, or None. The same text of the same run is kept once."""
    check_text(text)
    lease, log, why = live_lease(tx, ctx, ref, "write_note")
    if lease is not None and why is None:
        (earlier,) = tx.read(("notes_of_run", {"run_id": lease.run_id}))
        if not any(row["about"] == about and row["text"] == text for row in earlier):
            note = Note(
                note_id=NoteId(ctx.new_id()),
                about=about,
                account_id=lease.account_id,
                profile_id=lease.profile_id,
                job_id=lease.job_id,
                run_id=lease.run_id,
                author=lease.worker_id,
                text=text,
                written_at=log.now,
            )
            _keep(tx, note)
            log.event(EventType.NOTE_ADDED, lease=lease, data=_data(note))
    log.save(tx)
    return why


def _data(note: Note) -> Mapping[str, object]:
    return {"note_id": note.note_id, "about": note.about.value, "note": note.text}


def _keep(tx: Tx, note: Note) -> None:
    """Write the note, and delete the oldest ones beyond the maximum."""
    by_run = int(note.run_id is not None)
    place = {"about": note.about.value, "subject": note.subject, "by_run": by_run}
    (beyond,) = tx.read(("notes_beyond", {**place, "kept": MAX_KEPT - 1, "limit": MAX_IN_BATCH}))
    tx.write("insert_notes", [{**_write_note(note), "subject": note.subject, "by_run": by_run}])
    if beyond:
        tx.write("delete_notes", [{"note_id": row["note_id"]} for row in beyond])
