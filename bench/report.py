"""What a benchmark reports: rows of a table as they come in, ratios, and a file with both.

Machines are noisy, so what is compared is measured in turns, several rounds, and the middle ratio counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))


@dataclass
class Report:
    """Rows of the table and the ratios, as they come in."""

    rows: list[tuple[str, float, str]] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)

    def row(self, name: str, rate: float, note: str = "") -> None:
        self.rows.append((name, rate, note))
        print(f"  {name:<62} {rate:>12,.1f}  {note}", flush=True)

    def ratio(self, name: str, value: float) -> None:
        self.ratios[name] = round(value, 3)

    def save(self, out: Path) -> None:
        out.parent.mkdir(parents=True, exist_ok=True)
        figures = [{"name": name, "value": round(value, 1), "note": note} for name, value, note in self.rows]
        out.write_text(json.dumps({"ratios": self.ratios, "figures": figures}, indent=2) + "\n")
        print("\nratios")
        for name, value in sorted(self.ratios.items()):
            print(f"  {name:<40} {value:>9.3f}")
        print(f"\nwritten to {out}")


def in_turns(*measures: Callable[[], float], rounds: int = ROUNDS) -> list[list[float]]:
    """Each measure once per round, in turns; the figures of each."""
    figures: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for measure, taken in zip(measures, figures, strict=True):
            taken.append(measure())
    return figures


def middle_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return median(a / b for a, b in zip(ours, theirs, strict=True))
