"""Notes on the command line: written, listed, and shown where somebody decides."""

from leasekeeper.core.notes import MAX_CHARACTERS, Note, NoteAbout
from tests.cli.workplace import Workplace


def test_a_note_is_written_listed_and_shown(place: Workplace) -> None:
    added = place.text("notes", "add", "profile", "shop_us_main", "--note", "asks for a code", "--by", "ann")
    assert added == "profile shop_us_main has a new note\n"
    answer = place.json("notes", "add", "account", "shop_us", "--note", "the owner\nis on leave")
    assert (answer["target"], answer["action"], answer["state"]) == ("account", "note", "active")
    title, *rows = place.text("notes").splitlines()
    assert title.split() == ["NOTE", "WRITTEN", "ON", "ABOUT", "BY", "TEXT"]
    assert [row.split("  ")[-1].strip() for row in rows] == ["the owner is on leave", "asks for a code"]
    (note,) = place.json("notes", "--profile", "shop_us_main")["items"]
    assert (note["author"], note["text"], note["about"]) == ("ann", "asks for a code", "profile")
    assert len(place.json("notes", "--account", "shop_us")["items"]) == 2
    assert place.text("notes", "-q", "--about", "account") != place.text("notes", "-q", "--about", "profile")
    shown = place.text("notes", "show", note["note_id"])
    assert "asks for a code" in shown
    assert "ann" in shown


def test_no_notes_say_how_to_write_one(place: Workplace) -> None:
    assert place.text("notes") == "no notes: write one: leasekeeper notes add profile ID --note …\n"


def test_several_records_get_the_same_note_and_one_that_is_missing_stops_no_other(place: Workplace) -> None:
    place.text("notes", "add", "profile", "twin_a", "twin_b", "--note", "moved")
    assert {each["profile_id"] for each in place.json("notes")["items"]} == {"twin_a", "twin_b"}
    result = place.cli("notes", "add", "profile", "shop_us", "nobody", "--note", "by its beginning")
    assert result.exit_code == 3
    assert "profile shop_us_main has a new note" in result.stdout
    assert "there is no profile nobody" in result.stderr


def test_a_note_says_something_and_not_too_much(place: Workplace) -> None:
    for text in (" ", "x" * (MAX_CHARACTERS + 1)):
        assert place.cli("notes", "add", "profile", "twin_a", "--note", text).exit_code == 2
    assert place.json("notes")["items"] == []


def test_why_reviews_and_profiles_show_the_notes(place: Workplace) -> None:
    job = place.reviewed_profile()
    place.text("notes", "add", "profile", "shop_us_main", "--note", "asks for a code", "--by", "ann")
    place.text("notes", "add", "account", "shop_us", "--note", "on leave", "--by", "bob")
    said = ("by ann: asks for a code", "by bob on account shop_us: on leave")
    reviews = [each["review_id"] for each in place.json("reviews")["items"]]
    for words in (
        ("why", "profile", "shop_us_main"),
        ("why", "job", job),
        ("profiles", "show", "shop_us_main"),
        *(("reviews", "show", review) for review in reviews),
    ):
        shown = place.text(*words)
        assert all(text in shown for text in said), words
    assert [note["text"] for note in place.json("why", "job", job)["notes"]] == ["on leave", "asks for a code"]
    assert len(place.json("profiles", "show", "shop_us_main")["notes"]) == 2
    assert "notes" not in place.text("profiles", "show", "twin_a")


def test_a_run_is_named_in_its_note(place: Workplace) -> None:
    grant = place.lease("twin_a")
    place.do(lambda store: store.write_note(grant.lease.ref, "3 orders are held", about=NoteAbout.ACCOUNT))
    place.end(grant)
    (note,) = place.json("notes", "--run", grant.lease.run_id)["items"]
    assert (note["author"], note["account_id"], note["profile_id"]) == ("script", "twins", "twin_a")
    assert f"by script in run {grant.lease.run_id} on account twins" in place.text("why", "profile", "twin_b")
    assert place.json("events", "--type", "note_added")["items"][0]["data"]["note"] == "3 orders are held"
    assert place.do(lambda store: store.get(Note, note["note_id"])).text == note["text"]


def test_bans_are_marked_by_filter_too(place: Workplace) -> None:
    place.text("profiles", "ban", "--all", "--account", "twins", "--note", "seen", "--yes")
    assert {each["profile_id"] for each in place.json("profiles", "--ban-status", "banned")["items"]} == {
        "twin_a",
        "twin_b",
    }
