"""`leasekeeper schedules`: what it shows of times, and pausing, resuming and running one now."""

import json
from datetime import datetime, timedelta

from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job
from tests.cli.workplace import FLEET, Workplace

SCHEDULES = (
    FLEET
    + """\
schedules:
  nightly:
    cron: "30 3 * * *"
    timezone: Europe/Berlin
    profile: shop_us_main
    task: buy
    payload: {password: hunter2}
    priority: 5
  twins_hourly: {cron: "@hourly", select: {account: twins}, task: look, jitter_seconds: 600}
"""
)


def time_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_an_empty_list_says_what_to_do(place: Workplace) -> None:
    said = place.text("schedules")
    assert said == "no schedules: declare them in fleet.yaml under schedules, then: leasekeeper apply fleet.yaml\n"
    assert place.json("schedules") == {"items": [], "after": None}


def test_apply_shows_what_changes_but_no_payload(place: Workplace) -> None:
    assert "+ schedule nightly\n+ schedule twins_hourly\n" in place.apply(SCHEDULES)
    changed = SCHEDULES.replace("hunter2", "hunter3").replace("priority: 5", "priority: 6")
    said = place.apply(changed.replace("account: twins}", "account: twins, pool: default}"))
    assert "hunter" not in said
    assert said.splitlines() == [
        "~ schedule nightly",
        "    payload: (not shown) → (not shown)",
        "    priority: 5 → 6",
        "~ schedule twins_hourly",
        "    select: {account: twins} → {account: twins, pool: default}",
        "applied 2 changes (2 changed)",
    ]
    assert place.text("apply", place.fleet(FLEET), "--yes") == "nothing to change\n"
    assert "- schedule nightly" in place.text("apply", place.fleet(FLEET), "--yes", "--prune")


def test_a_list_shows_each_with_its_next_time(place: Workplace) -> None:
    place.apply(SCHEDULES)
    header, first, second = place.text("schedules").splitlines()
    assert header.split() == ["SCHEDULE", "STATE", "CRON", "ZONE", "NEXT", "TASK", "PROFILES"]
    assert first.split()[:7] == ["nightly", "active", "30", "3", "*", "*", "*"]
    assert "account twins" in second
    nightly, twins = place.json("schedules")["items"]
    declared = time_of(nightly["since"])
    assert declared < time_of(nightly["next_at"]) < declared + timedelta(days=1, hours=1)
    assert time_of(twins["next_at"]).minute == 0
    assert nightly["job"] == {"task": "buy", "priority": 5}
    assert (nightly["state"], nightly["select"]["profile_id"]) == ("active", "shop_us_main")
    page = place.json("schedules", "--limit", "1")
    assert [item["schedule_id"] for item in page["items"]] == ["nightly"]
    rest = place.json("schedules", "--after", page["after"])
    assert [item["schedule_id"] for item in rest["items"]] == ["twins_hourly"]


def test_show_lists_the_next_times_in_the_zone_of_the_schedule(place: Workplace) -> None:
    place.apply(SCHEDULES)
    shown = place.json("schedules", "show", "nightly", "--times", "3")
    times = [time_of(text) for text in shown["next_times"]]
    assert len(times) == 3
    assert times[0] == time_of(shown["next_at"])
    text = place.text("schedules", "show", "nightly", "--times", "2")
    assert text.count(" 03:30+0") == 2
    assert "overdue" not in text
    assert "hunter2" not in text + json.dumps(shown)
    assert "hunter2" in place.text("schedules", "show", "nightly", "--payload")
    assert place.json("schedules", "show", "nightly", "--payload")["job"]["payload"] == {"password": "hunter2"}
    both = place.json("schedules", "show", "night", "twins")["items"]
    assert [each["schedule_id"] for each in both] == ["nightly", "twins_hourly"]
    assert place.text("schedules", "show", "night", "twins").count("next times") == 2
    assert "there is no schedule nothing" in place.fails(3, "schedules", "show", "nothing")


def test_a_schedule_is_paused_and_resumed_with_a_note(place: Workplace) -> None:
    place.apply(SCHEDULES)
    assert place.text("schedules", "pause", "nightly", "--note", "shop is down") == "schedule nightly is now paused\n"
    listed = place.text("schedules")
    assert "shop is down" in listed
    paused = place.json("schedules", "show", "nightly")
    assert (paused["state"], paused["next_at"], paused["pause_note"]) == ("paused", None, "shop is down")
    assert "changed since it was read" in place.fails(
        4, "schedules", "resume", "nightly", "--note", "x", "--if-version", "1"
    )
    assert place.text("schedules", "resume", "nightly", "--note", "back") == "schedule nightly is now active\n"
    assert place.json("schedules", "show", "nightly")["next_at"] is not None
    kinds = [item["type"] for item in place.json("events")["items"]]
    assert kinds[:2] == ["schedule_resumed", "schedule_paused"]
    assert place.cli("schedules", "pause", "nightly").exit_code == 2


def test_one_is_run_now_and_its_jobs_are_found_by_it(place: Workplace) -> None:
    place.apply(SCHEDULES)
    place.start_worker()
    said = place.text("schedules", "run", "twins_hourly", "--note", "after the outage", "--by", "ann")
    assert said == "schedule twins_hourly made 2 jobs\n"
    jobs = place.json("jobs", "--schedule", "twins_hourly")["items"]
    assert sorted(job["profile_id"] for job in jobs) == ["twin_a", "twin_b"]
    assert {job["labels"]["schedule"] for job in jobs} == {"twins_hourly"}
    assert place.json("jobs", "--schedule", "nightly")["items"] == []
    again = place.json("schedules", "run", "twins_hourly", "--note", "once more")
    assert (again["jobs"], again["skipped"], again["state"]) == (0, 2, "active")
    shown = place.text("schedules", "show", "twins_hourly")
    assert "newest jobs" in shown
    assert jobs[0]["job_id"] in shown
    assert "there is no schedule nothing" in place.fails(3, "schedules", "run", "nothing", "--note", "x")
    (event,) = place.do(lambda store: store.find(Event, {"type": EventType.SCHEDULE_RUN.value}, limit=1)).items
    assert (event.actor, event.data["note"]) != ("", "")


def test_a_sweep_reports_how_many_jobs_schedules_made(place: Workplace) -> None:
    place.apply(SCHEDULES.replace("30 3 * * *", "0 0 29 2 *").replace("@hourly", "@yearly"))
    assert place.text("sweep") == "nothing to do\n"
    assert place.json("sweep")["fired"] == 0
    assert place.do(lambda store: store.find(Job)).items == []
