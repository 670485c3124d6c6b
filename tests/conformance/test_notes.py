"""Notes on profiles and accounts: by people and by runs, bounded, and without any other effect."""

import pytest

from leasekeeper.core.decisions import Action, Review
from leasekeeper.core.events import EventType
from leasekeeper.core.notes import MAX_CHARACTERS, MAX_KEPT, MAX_SHOWN, Note, NoteAbout
from leasekeeper.errors import InputError, LeaseLost, NotFound, VersionConflict
from tests.conformance.world import NewWorld, World, account, profile


async def texts(world: World, **where: str) -> list[str]:
    return [note.text for note in await world.all(Note, **where)]


async def test_a_person_writes_a_note_and_nothing_else_changes(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.finish(await world.run(), "LOGIN_REQUIRED")
        before = await world.everything()
        lane = await world.lane()
        decided = await world.decide_profile(Action.NOTE, note="asks for a code on Mondays", version=lane.version)
        assert (decided.state, decided.version) == (lane.state, lane.version)
        (note,) = await world.all(Note)
        assert (note.about, note.profile_id, note.account_id) == (NoteAbout.PROFILE, "p1", "shop")
        assert (note.author, note.text, note.run_id) == ("ann", "asks for a code on Mondays", None)
        assert note.written_at == world.now
        assert await world.everything() == {**before, "Note": [note]}
        (event,) = await world.events(type=EventType.NOTE_ADDED)
        assert (event.actor, event.profile_id, event.account_id) == ("ann", "p1", "shop")
        assert event.data == {"note_id": note.note_id, "about": "profile", "note": note.text}
        assert len(await world.all(Review, open="1", target="profile")) == 1


async def test_a_note_on_an_account_is_of_no_profile(new_world: NewWorld) -> None:
    async with new_world() as world:
        assert (await world.decide_account(Action.NOTE, note="the owner is on leave")).state == "active"
        (note,) = await world.all(Note, account_id="shop")
        assert (note.about, note.profile_id, note.subject) == (NoteAbout.ACCOUNT, None, "shop")
        assert await texts(world, profile_id="p1") == []


async def test_a_note_on_what_is_not_there_or_has_changed_is_refused(new_world: NewWorld) -> None:
    async with new_world() as world:
        with pytest.raises(NotFound):
            await world.decide_profile(Action.NOTE, "nobody")
        with pytest.raises(NotFound):
            await world.decide_account(Action.NOTE, "nobody")
        with pytest.raises(VersionConflict):
            await world.decide_profile(Action.NOTE, version=99)
        with pytest.raises(VersionConflict):
            await world.decide_account(Action.NOTE, version=99)
        with pytest.raises(InputError):
            await world.decide_profile(Action.NOTE, note="x" * (MAX_CHARACTERS + 1))
        assert await texts(world) == []


async def test_a_run_writes_under_its_lease(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.store.write_note(grant.lease.ref, "the banner is new")
        await world.store.write_note(grant.lease.ref, "3 orders are held", about=NoteAbout.ACCOUNT)
        second, first = await world.all(Note, run_id=grant.lease.run_id)
        assert (first.about, first.author, first.job_id) == (NoteAbout.PROFILE, "w1", grant.lease.job_id)
        assert (second.about, second.subject, second.profile_id) == (NoteAbout.ACCOUNT, "shop", "p1")
        assert {event.run_id for event in await world.events(type=EventType.NOTE_ADDED)} == {grant.lease.run_id}
        await world.finish(grant)


async def test_the_same_text_of_a_run_is_kept_once(new_world: NewWorld) -> None:
    async with new_world() as world:
        first = await world.run()
        for about in (NoteAbout.PROFILE, NoteAbout.PROFILE, NoteAbout.ACCOUNT):
            await world.store.write_note(first.lease.ref, "slow", about=about)
        await world.finish(first)
        second = await world.run()
        await world.store.write_note(second.lease.ref, "slow")
        assert len(await world.all(Note, run_id=first.lease.run_id)) == 2
        assert len(await world.all(Note, run_id=second.lease.run_id)) == 1
        await world.finish(second)


async def test_a_late_run_writes_nothing_but_the_log(new_world: NewWorld) -> None:
    async with new_world() as world:
        grant = await world.run()
        await world.lose(grant)
        before = await world.everything()
        with pytest.raises(LeaseLost):
            await world.store.write_note(grant.lease.ref, "too late")
        assert await world.everything() == before
        (refused,) = await world.events(type=EventType.STALE_WORKER_WRITE_REJECTED)
        assert refused.data["write"] == "write_note"


@pytest.mark.parametrize("text", ["", "  ", "x" * (MAX_CHARACTERS + 1)])
async def test_a_note_of_a_run_has_a_length(new_world: NewWorld, text: str) -> None:
    async with new_world() as world:
        grant = await world.run()
        with pytest.raises(InputError, match="note"):
            await world.store.write_note(grant.lease.ref, text)
        await world.store.write_note(grant.lease.ref, "x" * MAX_CHARACTERS)
        assert [len(each) for each in await texts(world)] == [MAX_CHARACTERS]
        await world.finish(grant)


async def test_the_newest_are_kept_and_runs_push_out_none_of_a_person(new_world: NewWorld) -> None:
    async with new_world() as world:
        await world.decide_profile(Action.NOTE, note="by a person")
        grant = await world.run()
        for n in range(MAX_KEPT + 3):
            await world.store.write_note(grant.lease.ref, f"n{n}")
        await world.store.write_note(grant.lease.ref, "on the account", about=NoteAbout.ACCOUNT)
        newest = [f"n{n}" for n in reversed(range(3, MAX_KEPT + 3))]
        assert await texts(world) == ["on the account", *newest, "by a person"]
        await world.finish(grant)


async def test_why_shows_the_newest_on_the_profile_and_its_account(new_world: NewWorld) -> None:
    async with new_world(account("shop"), profile("p1"), profile("p2")) as world:
        job = await world.add("p1")
        await world.decide_profile(Action.NOTE, "p2", note="another profile")
        await world.decide_account(Action.NOTE, note="on the account")
        for n in range(MAX_SHOWN - 1):
            await world.decide_profile(Action.NOTE, note=f"n{n}")
        expected = [*(f"n{n}" for n in reversed(range(MAX_SHOWN - 1))), "on the account"]
        assert [note.text for note in (await world.store.why(profile_id="p1")).notes] == expected
        assert [note.text for note in (await world.store.why(job_id=job.job_id)).notes] == expected
        await world.decide_profile(Action.NOTE, note="newest")
        assert [note.text for note in (await world.store.why(profile_id="p1")).notes] == ["newest", *expected[:-1]]


async def test_removing_forgets_no_note(new_world: NewWorld) -> None:
    async with new_world(account("shop"), profile("p1")) as world:
        await world.decide_profile(Action.NOTE, note="kept")
        await world.declare(account("other"), prune=True)
        await world.declare(account("shop"), profile("p1"))
        assert [note.text for note in (await world.store.why(profile_id="p1")).notes] == ["kept"]
