"""A progress line for long commands. Only on a terminal, on stderr.

Redrawn in place, at a limited rate, and ended with a line break before the answer.
"""

import sys
import time
from typing import Final, Self

import click

_EVERY_SECONDS: Final = 0.1


class Progress:
    """`with Progress("submitted", "jobs", 5_000) as progress:` then `progress.at(1_000)`."""

    def __init__(self, verb: str, noun: str, total: int) -> None:
        self._verb, self._noun, self._total = verb, noun, total
        self._shown = False
        self._next = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def at(self, done: int) -> None:
        """Report how many are done."""
        if not sys.stderr.isatty() or time.monotonic() < self._next:
            return
        self._shown = True
        self._next = time.monotonic() + _EVERY_SECONDS
        click.echo(f"\r{self._verb} {done:,} of {self._total:,} {self._noun}", nl=False, err=True)

    def __exit__(self, *_fault: object) -> None:
        if self._shown:
            click.echo(err=True)
