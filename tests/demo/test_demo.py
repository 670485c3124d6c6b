"""`leasekeeper demo` from outside: a real browser, worker processes that die, and what is left when it is over."""

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from leasekeeper.core.events import Event, EventType
from leasekeeper.core.jobs import Job
from leasekeeper.core.leases import Lease, RunRecord
from leasekeeper.core.profiles import Lane
from leasekeeper.demo.jobs import FIRST, WHILE_TAKEN
from leasekeeper.demo.workers import processes_of
from leasekeeper.ports import Store
from leasekeeper.stores import open_store
from tests.cli.workplace import environment, in_terminal, process, program

SECONDS = 700  # it takes 40; a busy machine takes its time, only one that hangs never comes to an end
# What this page shows is from a demo's store. Of a review: whose it is; of a dead job: its task and profile.
PAGE = Path(__file__).resolve().parents[2] / "docs/howto/handle-reviews-and-dead-letters.md"
REVIEW = re.compile(r"^[0-9a-f-]{36} +(job|profile) +(\w+)", re.MULTILINE)
DEAD = re.compile(r"^[0-9a-f-]{36} +(\w+) +(\w+) +1 .+ was the last$", re.MULTILINE)
pytestmark = pytest.mark.timeout(SECONDS + 100)

JOBS = {
    ("books_us_1", "sign_in"): ["completed"],
    ("books_us_1", "export_orders"): ["completed"],
    ("books_us_1", "monthly_report"): ["completed"],
    ("books_us_1", "read_orders"): ["completed", "skipped"],
    ("books_us_2", "sign_in"): ["completed"],
    ("books_us_2", "sync_stock"): ["completed"],
    ("books_us_3", "sign_in"): ["completed"],
    ("books_us_3", "read_orders"): ["review"],
    ("books_us_4", "sign_in"): ["review"],
    ("books_us_4", "read_orders"): ["blocked"],
    ("books_us_5", "sign_in"): ["completed"],
    ("books_us_5", "export_orders"): ["review"],
    ("books_us_6", "sign_in"): ["completed"],
    ("books_us_6", "monthly_report"): ["completed"],
    ("shoes_de_main", "sign_in"): ["completed"],
    ("shoes_de_main", "export_orders"): ["completed"],
    ("shoes_de_main", "read_orders"): ["blocked"],
    ("shoes_de_backup", "sign_in"): ["completed"],
    ("shoes_de_backup", "export_orders"): ["review", "blocked"],
    ("toys_fr_1", "price_list"): ["completed", "dead"],
    ("toys_fr_guest", "price_list"): ["completed", "completed"],
}
PROFILES = {
    "books_us_1": "available",
    "books_us_2": "available",
    "books_us_3": "review_required",
    "books_us_4": "quarantined",
    "books_us_5": "quarantined",
    "books_us_6": "available",
    "shoes_de_main": "available",
    "shoes_de_backup": "available",
    "toys_fr_1": "available",
    "toys_fr_guest": "available",
}


def test_the_demo_shows_a_job_of_every_kind_and_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    # As `make run` calls it: without anybody to press Ctrl-C, the dashboard does not stay open.
    done = subprocess.run(
        [*program(), "demo", "--dashboard", "--folder", str(folder)],
        env=environment(COLUMNS="120", CI="true"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert processes_of(folder) == []
    assert "0 requests and 0 clicks after a lease was over" in done.stdout
    reported(done.stdout, folder)
    jobs, lanes, runs, events = asyncio.run(read(folder))
    check_jobs(jobs, runs)
    check_profiles(lanes, events)
    check_evidence(runs, folder)
    url = re.findall(r"export LEASEKEEPER_STORE=(\S+)", done.stdout)[0]
    assert "died inside export_orders" in process("why", "profile", "books_us_5", url=url).stdout
    page = PAGE.read_text(encoding="utf-8")
    for command, row in (("reviews", REVIEW), ("dlq", DEAD)):
        shown = page.partition(f"$ leasekeeper {command}\n")[2].partition("```")[0]
        assert sorted(row.findall(shown)) == sorted(row.findall(process(command, url=url).stdout)) != []


async def read(folder: Path) -> tuple[Sequence[Job], Sequence[Lane], Sequence[RunRecord], Sequence[Event]]:
    async def everything(store: Store) -> tuple[Sequence[Job], Sequence[Lane], Sequence[RunRecord], Sequence[Event]]:
        assert (await store.find(Lease, {"live": "1"})).items == []
        return (
            list(reversed((await store.find(Job, limit=1000)).items)),
            (await store.find(Lane, limit=1000)).items,
            list(reversed((await store.find(RunRecord, limit=1000)).items)),
            list(reversed((await store.find(Event, limit=1000)).items)),
        )

    store = await open_store(f"sqlite:///{folder}/leasekeeper.db")
    try:
        return await everything(store)
    finally:
        await store.close()


def reported(text: str, folder: Path) -> None:
    """The words at the end: each job and profile, with its reason, on lines that fit."""
    after = text.partition("what became of each job")[2]
    states = "completed|review|blocked|skipped|dead"
    rows = re.findall(rf"^(?:books|shoes|toys)_\w+ +\w+ +(?:{states}) ", after, re.MULTILINE)
    assert len(rows) == len(FIRST) + len(WHILE_TAKEN)
    for words in (
        "TIMEOUT: the task took longer than 5 s; attempt",
        "LOGIN_REQUIRED: a detector matched the page",
        "SECURITY_PROMPT: the shop asks for a code",
        "its profile was taken, and on_conflict is skip",
        "WORKER_LOST: died inside export_orders",
        "attempt 1 of 1 was the last",
        "ACTION_NOT_ALLOWED",
        f"export LEASEKEEPER_DATA_DIR={folder}/data",
        "leasekeeper open books_us_1",
        "leasekeeper dlq",
    ):
        assert words in " ".join(after.split()), words
    pictures = [Path(path) for path in re.findall(r"^ {4}(/\S+\.png)$", after, re.MULTILINE)]
    assert len(pictures) == 3
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert [line for line in after.splitlines() if len(line) > 120 and str(folder) not in line] == []


def check_jobs(jobs: Sequence[Job], runs: Sequence[RunRecord]) -> None:
    found: dict[tuple[str, str], list[str]] = {}
    for job in jobs:
        found.setdefault((job.profile_id, job.task), []).append(job.state)
    assert found == JOBS
    assert len(jobs) == len(FIRST) + len(WHILE_TAKEN)
    # On a machine that is very busy more of them may time out, and are tried again: that is no part of the play.
    assert {("books_us_2", "sync_stock"), ("books_us_6", "monthly_report")} <= {
        (job.profile_id, job.task) for job in jobs if job.attempt > 1
    }
    assert {(run.profile_id, run.task, run.stop_reason) for run in runs if run.stop_reason} >= {
        ("books_us_2", "sync_stock", "TIMEOUT"),
        ("books_us_3", "read_orders", "LOGIN_REQUIRED"),
        ("books_us_4", "sign_in", "SECURITY_PROMPT"),
        ("books_us_5", "export_orders", "WORKER_LOST"),
        ("books_us_6", "monthly_report", "WORKER_LOST"),
        ("shoes_de_backup", "export_orders", "ACTION_NOT_ALLOWED"),
        ("toys_fr_1", "price_list", "TEMPORARY_NAVIGATION_ERROR"),
    }
    assert len({run.worker_id for run in runs}) == 4


def check_profiles(lanes: Sequence[Lane], events: Sequence[Event]) -> None:
    assert {lane.profile_id: str(lane.state) for lane in lanes} == PROFILES
    killed = [event for event in events if event.profile_id == "books_us_5"]
    assert killed[-1].type is EventType.STALE_RESOLVED
    assert "section_left" not in [event.type for event in killed]
    conflicts = [event.data["decision"] for event in events if event.type is EventType.PROFILE_LOCK_CONFLICT]
    assert {"wait", "skip"} <= set(conflicts)


def check_evidence(runs: Sequence[RunRecord], folder: Path) -> None:
    """Each run has its folder, each artifact is there, and the killed worker's browser left its last page."""
    for run in runs:
        artifacts = run.evidence.get("artifacts", [])
        assert isinstance(artifacts, list)
        for artifact in artifacts:
            path = folder / "data" / "runs" / str(run.evidence["folder"]) / artifact["name"]
            assert path.stat().st_size == artifact["size"], path
    (lost,) = [run for run in runs if run.profile_id == "books_us_5" and run.stop_reason == "WORKER_LOST"]
    keeper = lost.evidence["keeper"]
    assert isinstance(keeper, Mapping)
    assert (keeper["cause"], keeper["clean_close"]) == ("worker_gone", True)
    assert [artifact["name"] for artifact in lost.evidence["artifacts"]] == ["last.png"]  # type: ignore[attr-defined]  # JSON of our own


def test_ctrl_c_ends_everything_and_gives_the_cursor_back(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    code, seen = in_terminal(
        "demo", "--folder", str(folder), url="sqlite:///unused.db", columns=80, interrupt_at="leases it for"
    )
    assert code == 130
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l") >= 0
    assert "LAST SAFE STEP" in seen
    assert seen.rstrip().endswith("stopped: the workers have ended, no browser is open")
    none_left(folder)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", seen)
    assert [line for line in plain.splitlines() if len(line) > 80] == []


def test_a_demo_that_is_killed_takes_its_workers_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with subprocess.Popen(
        [*program(), "demo", "--folder", str(folder)], env=environment(), stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        assert any("leases it for" in line for line in demo.stdout)
        demo.send_signal(signal.SIGKILL)
    none_left(folder)


def none_left(folder: Path) -> None:
    """Until nothing is left of a demo that did not come to its end. It does not wait for ever itself, this does."""
    until = time.monotonic() + SECONDS
    while processes_of(folder):
        assert time.monotonic() < until
        time.sleep(0.1)  # waits: processes that are no children of ours have no event to wait for


def test_without_a_browser_it_says_what_to_do_and_makes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = subprocess.run(
        [*program(), "demo", "--folder", str(folder)],
        env=environment(LEASEKEEPER_BROWSER=str(tmp_path / "nowhere")),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "nowhere" in done.stderr
    assert "playwright install chromium" in done.stderr
    assert not folder.exists()


def test_without_playwright_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['playwright'] = None; from leasekeeper.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden, "demo", "--folder", str(tmp_path / "demo")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "install the extra leasekeeper[browser]" in done.stderr


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = process("demo", "--folder", str(tmp_path))
    assert done.returncode == 2
    assert "thesis.txt" in done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]
