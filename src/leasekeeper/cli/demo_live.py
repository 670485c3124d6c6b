"""Shows the running demo: a table that is redrawn in place on a terminal, one line per event anywhere else.

Plain ANSI. Whatever ends the demo, the cursor comes back.
"""

import shutil
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

import click

from leasekeeper.cli.table import Column, Screen, printable, render_table

if TYPE_CHECKING:
    from datetime import datetime

    from leasekeeper.core.leases import Lease
    from leasekeeper.core.profiles import Lane
    from leasekeeper.demo.narration import Line
    from leasekeeper.demo.scenario import Scene

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
MAX_LINES: Final = 8
_ABOUT: Final = 16
_ORDER: Final = ("running", "queued", "scheduled", "blocked", "review", "completed", "dead", "skipped", "cancelled")


class Lines:
    """For a pipe or a file: one uncut line for each event, as it happens."""

    live = False

    def __init__(self) -> None:
        self._screen = Screen(width=None, colours=False)
        self._began_at: datetime | None = None

    def __enter__(self) -> Self:
        return self

    def show(self, line: "Line") -> None:
        self._began_at = self._began_at or line.at
        click.echo(as_text(line, self._began_at, self._screen))
        sys.stdout.flush()

    def see(self, scene: "Scene") -> None:
        """Nothing: a file should not get a table per refresh."""

    def __exit__(self, *_fault: object) -> None:
        click.echo()


class Table:
    """For a terminal: the fleet now, and the last events, redrawn in place."""

    live = True

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._lines: deque[Line] = deque(maxlen=MAX_LINES)
        self._height = 0
        self._scene: Scene | None = None

    def __enter__(self) -> Self:
        _write(HIDE_CURSOR)
        return self

    def show(self, line: "Line") -> None:
        self._lines.append(line)
        if self._scene is not None:
            self._draw(self._scene)

    def see(self, scene: "Scene") -> None:
        self._scene = scene
        self._draw(scene)

    def _draw(self, scene: "Scene") -> None:
        columns, rows = shutil.get_terminal_size()
        screen = Screen(width=columns, colours=self._screen.colours)
        frame = picture(scene, self._lines, screen, rows - 1)
        up = f"\x1b[{self._height}A" if self._height else ""
        # Each line is cleared to its end, and what was below the last one goes.
        _write(f"\r{up}" + "".join(f"{line}\x1b[K\n" for line in frame) + "\x1b[J")
        self._height = len(frame)

    def __exit__(self, *_fault: object) -> None:
        up = f"\x1b[{self._height}A" if self._height else ""
        _write(f"\r{up}\x1b[J{SHOW_CURSOR}")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def picture(scene: "Scene", lines: "Sequence[Line]", screen: Screen, rows: int) -> list[str]:
    """One frame of `rows` lines: the fleet, and below it as many events as fit."""
    seconds = int((scene.now - scene.began_at).total_seconds())
    top = [
        screen.title(f"leasekeeper demo  {seconds} s") + f"   {scene.requests} requests, {scene.clicks} of them clicks",
        _counts("jobs", scene.stats.jobs, screen),
        _counts("profiles", scene.stats.profiles, screen),
        "",
        *render_table(_columns(scene), scene.lanes, scene.now, screen),
        "",
    ]
    room = max(0, rows - len(top))
    newest = list(lines)[-room:] if room else []
    return [*top[:rows], *(as_text(line, scene.began_at, screen) for line in newest)]


def _counts(title: str, counts: Mapping[str, int], screen: Screen) -> str:
    known = [state for state in _ORDER if state in counts] + [state for state in counts if state not in _ORDER]
    shown = "  ".join(f"{counts[state]} {screen.state(state)}" for state in known if counts[state])
    return f"{title:<9} {shown or 'none yet'}"


def _columns(scene: "Scene") -> "Sequence[Column[Lane]]":
    def held(lane: "Lane") -> "Sequence[Lease]":
        return scene.leases.get(lane.profile_id, ())

    def holders(lane: "Lane") -> str:
        return ", ".join(sorted({lease.worker_id for lease in held(lane)}))

    def tasks(lane: "Lane") -> str:
        return ", ".join(sorted({scene.tasks.get(lease.job_id or "", "") for lease in held(lane)}))

    def step(lane: "Lane") -> str:
        inside = next((lease.open_section for lease in held(lane) if lease.open_section), None)
        return f"inside {inside}" if inside else next((x.last_safe_step or "" for x in held(lane)), "")

    # Padded to their usual width, so that the columns do not move between frames.
    return (
        Column("PROFILE", "profile_id"),
        Column("STATE", lambda lane: f"{lane.state:<15}", state=True),
        Column("HOLDER", lambda lane: f"{holders(lane):<8}", spare=2, least=8),
        Column("TASK", lambda lane: f"{tasks(lane):<14}", spare=1, least=12),
        Column("LAST SAFE STEP", lambda lane: f"{step(lane):<14}", spare=3, least=14),
    )


def as_text(line: "Line", began_at: "datetime", screen: Screen) -> str:
    """One line, cut where the screen ends."""
    seconds = max(0.0, (line.at - began_at).total_seconds())
    text = f"{seconds:6.1f} s  {line.about:<{_ABOUT}} {line.text}".rstrip()
    text = printable(text)
    if screen.width is not None and len(text) > screen.width:
        text = text[: screen.width - 1] + "…"
    return screen.title(text) if line.stage else text
