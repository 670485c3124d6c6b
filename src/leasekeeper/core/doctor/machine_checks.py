"""Checks of this machine: data directory, disks, browser, fonts, display. Facts in, verdict out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from leasekeeper.core.doctor.findings import GB, MB, Advice, Step, Verdict, count, fail, names, ok, size, skip, warn


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """The data directory. `owner` None: it does not exist yet. `writable`: it can be written to, or made."""

    path: str
    user: int
    owner: int | None
    mode: int = 0
    folder: bool = True
    writable: bool = True


def judge_data_dir(facts: FolderFacts) -> Verdict:
    data = {"path": facts.path, "owner": facts.owner, "user": facts.user, "mode": f"{facts.mode:04o}"}
    if not facts.folder:
        return fail(f"{facts.path} is not a folder", Advice.CHOOSE_DATA_DIR, **data)
    if facts.owner is not None and facts.owner != facts.user:
        return fail(
            f"{facts.path} belongs to user {facts.owner}, this is user {facts.user}",
            Advice.RUN_AS_OWNER,
            **data,
        )
    if not facts.writable:
        return fail(f"{facts.path} cannot be written to", Advice.CHOOSE_DATA_DIR, **data)
    if facts.owner is None:
        return ok(f"{facts.path} does not exist yet and will be made", **data)
    if facts.mode & 0o077:
        return warn(
            f"others have access to {facts.path} (mode {facts.mode:04o}): who can read it can read cookies",
            Advice.RESTRICT_DATA_DIR,
            Step.RESTRICT_DATA_DIR,
            **data,
        )
    return ok(f"{facts.path} is this user's alone", **data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder that the installation writes to: the data directory, or that of an SQLite store."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """What kind of file system a place is on; `kind` is empty if the system does not report it."""

    place: Place
    kind: str
    network: bool
    is_store: bool


def judge_evidence(location: str | None, problem: str | None) -> Verdict:
    """`location` None: evidence stays on the machine of its run. `problem`: why nothing can be delivered."""
    if problem is not None:
        return fail(problem, Advice.CHECK_EVIDENCE, location=location)
    if location is None:
        return ok("it stays in the data directory of the machine of its run")
    return ok(f"a file could be put into {location}", location=location)


def judge_profile_store(
    location: str | None,
    problem: str | None,
    *,
    encrypted: bool = True,
    keys: Sequence[str] = (),
    needed: Mapping[str, int] | None = None,
) -> Verdict:
    """`location` None: profiles stay on their machines. `problem`: why no snapshot can be stored. `keys`: those that
    are set here, by id, the current one first; `needed`: how many snapshots are encrypted with each key."""
    if problem is not None:
        return fail(problem, Advice.CHECK_PROFILE_STORE, location=location)
    if location is None:
        return ok("none: profiles stay on their machines")
    if not encrypted:
        found = f"snapshots are stored in {location}, and are not encrypted"
        return warn(found, Advice.SET_SECRET_KEY, location=location)
    counts = {key: number for key, number in sorted((needed or {}).items()) if keys and key != keys[0]}
    missing = {key: number for key, number in counts.items() if key not in keys}
    if missing:
        found = f"{_needed(missing)}, which is not set here"
        return warn(found, Advice.SET_EARLIER_KEY, location=location, needed=missing)
    if counts:
        said = f"a snapshot can be stored in {location}; {_needed(counts)}, which is not the first any more: keep it"
        return ok(said, location=location, needed=counts)
    return ok(f"a snapshot can be stored in {location}", location=location)


def _needed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} snapshots need key {key}" for key, number in counts.items())


MEMORY: Final = frozenset({"tmpfs", "ramfs"})


def judge_file_systems(systems: Sequence[FileSystem]) -> Verdict:
    data = {system.place.name: {"path": system.place.path, "kind": system.kind} for system in systems}
    for system in systems:
        if system.network and system.is_store:
            return fail(
                f"the SQLite store is on a network file system ({system.kind})",
                Advice.MOVE_STORE,
                **data,
            )
    for system in systems:
        where = f"the {system.place.name} {system.place.path}"
        if system.network:
            return warn(
                f"{where} is on a network file system ({system.kind})",
                Advice.USE_LOCAL_DISK,
                **data,
            )
        if system.kind in MEMORY:
            return warn(
                f"{where} is in memory ({system.kind}): a restart of the machine deletes it", Advice.USE_DISK, **data
            )
    return ok(", ".join(f"{s.place.name}: {s.kind or 'kind not known'}" for s in systems), **data)


SPACE_FAILS: Final = 200 * MB
SPACE_WARNS: Final = 2 * GB
INODES_FAIL: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is free at a place. A file system without a fixed number of files says 0 of 0."""

    place: Place
    free: int
    total: int
    files_free: int = 0
    files_total: int = 0


def judge_space(spaces: Sequence[Space]) -> Verdict:
    data = {
        s.place.name: {"path": s.place.path, "free_bytes": s.free, "total_bytes": s.total, "files_free": s.files_free}
        for s in spaces
    }
    tightest = min(spaces, key=lambda s: s.free)
    found = f"{size(tightest.free)} of {size(tightest.total)} free at the {tightest.place.name} {tightest.place.path}"
    todo = Advice.MAKE_ROOM
    out_of_files = [s for s in spaces if s.files_total and s.files_free < INODES_FAIL]
    if out_of_files:
        where = out_of_files[0]
        return fail(
            f"only {where.files_free:,} more files fit at the {where.place.name} {where.place.path}", todo, **data
        )
    if tightest.free < SPACE_FAILS:
        return fail(found, todo, **data)
    return warn(found, todo, **data) if tightest.free < SPACE_WARNS else ok(found, **data)


SYNC_WARNS: Final = 0.020


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """How long each of some durable writes took, in seconds; or why they failed."""

    place: Place
    seconds: Sequence[float] = ()
    problem: str = ""


def judge_sync(syncs: Sequence[Sync]) -> Verdict:
    data = {
        s.place.name: {
            "path": s.place.path,
            "median_ms": round(1_000 * median(s.seconds), 3) if s.seconds else None,
            "max_ms": round(1_000 * max(s.seconds), 3) if s.seconds else None,
            "problem": s.problem,
        }
        for s in syncs
    }
    for sync in syncs:
        if sync.problem:
            return fail(
                f"nothing can be written at the {sync.place.name} {sync.place.path}: {sync.problem}",
                Advice.CHECK_DISK,
                **data,
            )
    slowest = max(syncs, key=lambda s: median(s.seconds))
    each = median(slowest.seconds)
    found = f"{1_000 * each:.1f} ms for a durable write at the {slowest.place.name}"
    if each > SYNC_WARNS:
        return warn(
            f"{found}: about {1 / each:.0f} commits per second",
            Advice.USE_FASTER_DISK,
            **data,
        )
    return ok(found, **data)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts:
    """How the trial launch went. `problem`: why there was no browser; `unclean`: which clause of the proof failed."""

    seconds: float = 0.0
    close_seconds: float = 0.0
    problem: str = ""
    unclean: str = ""
    root: bool = False


LAUNCH_WARNS: Final = 10.0


def judge_launch(facts: LaunchFacts) -> Verdict:
    data = {
        "launch_seconds": round(facts.seconds, 3),
        "close_seconds": round(facts.close_seconds, 3),
        "root": facts.root,
    }
    if facts.problem:
        return fail(
            facts.problem,
            Advice.START_BROWSER_BY_HAND,
            Step.INSTALL_BROWSER_LIBRARIES,
            **data,
        )
    if facts.unclean:
        return fail(
            f"the browser did not close cleanly: {facts.unclean}",
            Advice.MAKE_CLOSE_CLEAN,
            **data,
        )
    if facts.seconds > LAUNCH_WARNS:
        return warn(
            f"the browser took {facts.seconds:.0f} s to start",
            Advice.START_FEWER_AT_ONCE,
            Step.START_FEWER_AT_ONCE,
            **data,
        )
    if facts.root:
        return warn(
            "the browser starts and closes cleanly, but without its sandbox: this is root",
            Advice.RUN_AS_ORDINARY_USER,
            **data,
        )
    return ok(f"started in {facts.seconds:.1f} s, closed cleanly in {facts.close_seconds:.1f} s", **data)


# Scripts that are tested, each with two characters that look different if there is a font for them.
SCRIPTS: Final[Mapping[str, str]] = {
    "Latin": "Ag",
    "Cyrillic": "Жд",
    "Arabic": "بم",
    "Chinese and Japanese": "漢字",
    "Korean": "한글",
    "emoji": "😀🚗",
}


def judge_fonts(drawn: Mapping[str, bool]) -> Verdict:
    """`drawn`: for each script, whether a page shows its characters and not boxes."""
    missing = [script for script, shown in drawn.items() if not shown]
    if not drawn.get("Latin", False):
        return fail(
            "pages show no text at all", Advice.INSTALL_FONTS_FOR_SCRIPTS, Step.INSTALL_FONTS, drawn=dict(drawn)
        )
    if missing:
        found = f"pages show boxes in place of {names(missing)}, in screenshots too"
        return warn(
            found, Advice.INSTALL_FONTS_FOR_SCRIPTS, Advice.SITES_NOTICE_FONTS, Step.INSTALL_FONTS, drawn=dict(drawn)
        )
    return ok("pages show every script that was tried", drawn=dict(drawn))


def judge_font_list(files: int | None) -> Verdict:
    """Without a browser: how many fonts fontconfig knows; None if there is no `fc-list`."""
    if files is None:
        return skip("no browser was started, and there is no 'fc-list' to ask", fonts=None)
    if files == 0:
        return warn("fontconfig knows no fonts", Advice.INSTALL_FONTS, Step.INSTALL_FONTS, fonts=0)
    return ok(f"fontconfig knows {count(files, 'font')}", fonts=files)


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayFacts:
    """The display that is set ('' for none), whether it answers, and how many recent jobs want to be visible."""

    display: str
    answers: bool
    visible_jobs: int


def judge_display(facts: DisplayFacts) -> Verdict:
    data = {"display": facts.display, "answers": facts.answers, "visible_jobs": facts.visible_jobs}
    wanted = f"{count(facts.visible_jobs, 'recent job')} with run_mode visible"
    if facts.display and facts.answers:
        return ok(f"display {facts.display} answers", **data)
    if facts.display:
        found = f"display {facts.display} does not answer"
        todo = Advice.START_DISPLAY
        return (
            fail(f"{found}: {wanted} cannot start", todo, **data) if facts.visible_jobs else warn(found, todo, **data)
        )
    if facts.visible_jobs:
        return warn(f"there is no display: {wanted} cannot run here", Advice.SET_DISPLAY, **data)
    return skip("there is no display, and no recent job wants one", **data)
